"""The requests of the registry, by method and path, as functions of the store. No HTTP here.

    GET    /subjects                                 POST   /subjects/{s}/versions     register
    GET    /subjects/{s}/versions[/{v}[/schema]]     POST   /subjects/{s}              look up
    GET    /subjects/{s}/versions/{v}/referencedby   DELETE /subjects/{s}[/versions/{v}]
    GET    /schemas, /schemas/types                  GET    /schemas/ids/{id}[/schema|/subjects|/versions]
    GET    /schemas/guids/{guid}                     POST   /compatibility/subjects/{s}/versions[/{v}]
    GET, PUT, DELETE  /config[/{s}], /mode[/{s}]     GET    /contexts, /associations/..., /v1/metadata/...

A version is a number or `latest`. What is asked for by id never changes, and is answered from memory; everything else
from what is committed at the time of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from oncelog import __version__
from oncelog.registry import decisions
from oncelog.registry.decisions import Wanted
from oncelog.registry.errors import Refusal, invalid_schema, schema_not_found
from oncelog.registry.records import Version, guid
from oncelog.registry.state import State
from oncelog.registry.store import Store
from oncelog.schemas.kinds import KINDS, parse
from oncelog.schemas.schema import PROTOBUF, InvalidSchema, MissingReference, Schema

LIST_MAX: Final = 10_000


class Call(NamedTuple):
    """A request. `names` are the parts of the path that are variable, in their order."""

    store: Store
    names: tuple[str, ...]
    query: Mapping[str, str]
    body: Mapping[str, Any]

    def flag(self, *names: str) -> bool:
        return any(self.query.get(name, "").lower() == "true" for name in names)

    def fresh(self, question: Callable[[State], Any]) -> Any:
        self.store.refresh()
        return self.store.read(question)

    def page(self, found: list[Any]) -> list[Any]:
        start, count = _number(self.query.get("offset", "0")), _number(self.query.get("limit", "-1"))
        return found[start:][: count if count >= 0 else LIST_MAX]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refusal(422, f"{text[:50]!r} is not a number") from None


def _version(text: str) -> int | None:
    """None for the last one."""
    if text in ("latest", "-1"):
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 0 < number < 2**31:
        raise Refusal(42202, f"The specified version '{text[:50]}' is not a valid version: give a number, or latest")
    return number


def _id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refusal(404, f"{text[:50]!r} is no id of a schema") from None


def _schema(call: Call) -> Schema:
    """The schema in the body. It is parsed before the store is locked, because compiling takes time."""
    try:
        schema = Schema.from_json(call.body)
    except InvalidSchema as error:
        raise invalid_schema(error) from error
    try:
        parse(schema, call.store.read(lambda state: state.referenced_schema))
    except MissingReference:
        # It may be newer than what was read last.
        pass
    except InvalidSchema as error:
        raise invalid_schema(error) from error
    return schema


def _in_format(state: State, shown: dict[str, Any], schema: Schema, wanted: str | None) -> dict[str, Any]:
    """`format=serialized`: the descriptor of a Protobuf schema, in base64."""
    if wanted != "serialized" or schema.kind != PROTOBUF:
        return shown
    try:
        return {**shown, "schema": parse(schema, state.referenced_schema).canonical}
    except InvalidSchema as error:
        raise invalid_schema(error) from error


def list_subjects(call: Call) -> Any:
    prefix = call.query.get("subjectPrefix", "").removeprefix(":*:")
    flags = {"with_deleted": call.flag("deleted"), "only_deleted": call.flag("deletedOnly", "deleted_only")}
    found = call.fresh(lambda state: state.subjects(**flags))
    return call.page([subject for subject in found if subject.startswith(prefix)])


def list_versions(call: Call) -> Any:
    only = call.flag("deletedOnly", "deleted_only")
    found = call.fresh(lambda state: state.versions(call.names[0], with_deleted=only or call.flag("deleted")))
    return call.page([version.version for version in found if version.deleted or not only])


def get_version(call: Call) -> Any:
    subject, number = call.names[0], _version(call.names[1])

    def answer(state: State) -> Any:
        version = state.version(subject, number, with_deleted=call.flag("deleted"))
        return _in_format(state, version.as_json(), version.schema, call.query.get("format"))

    return call.fresh(answer)


def get_version_text(call: Call) -> Any:
    return Text(get_version(call)["schema"])


def get_newest_with_metadata(call: Call) -> Any:
    """The newest version whose metadata has a property with a value."""
    wanted = {call.query.get("key", ""): call.query.get("value", "")}

    def answer(state: State) -> Any:
        versions = state.versions(call.names[0], with_deleted=call.flag("deleted"))
        for version in reversed(versions):
            properties = version.as_json().get("metadata", {}).get("properties") or {}
            if wanted.items() <= properties.items():
                return version.as_json()
        raise schema_not_found()

    return call.fresh(answer)


def list_referring(call: Call) -> Any:
    def answer(state: State) -> Any:
        version = state.version(call.names[0], _version(call.names[1]), with_deleted=True)
        return sorted({other.id for other in state.referring_to(version.subject, version.version)})

    return call.page(call.fresh(answer))


def register(call: Call) -> Any:
    schema = _schema(call)
    given = {name: call.body.get(name) for name in ("id", "version")}
    # Clients that give nothing may send 0 or -1.
    numbers = {name: value if isinstance(value, int) and value > 0 else None for name, value in given.items()}
    wanted = Wanted(call.names[0], schema, numbers["id"], numbers["version"])
    version: Version = call.store.change(lambda state: decisions.register(state, wanted))
    return {"id": version.id, "version": version.version, "guid": guid(version.schema)}


def look_up(call: Call) -> Any:
    schema = _schema(call)

    def answer(state: State) -> Any:
        versions = state.versions(call.names[0], with_deleted=call.flag("deleted"))
        found = decisions.find(state, *decisions.prepared(state, schema), versions)
        if found is None:
            raise schema_not_found()
        return _in_format(state, found.as_json(), found.schema, call.query.get("format"))

    return call.fresh(answer)


def delete_subject(call: Call) -> Any:
    permanent = call.flag("permanent")
    return call.store.change(lambda state: decisions.delete_subject(state, call.names[0], permanent=permanent))


def delete_version(call: Call) -> Any:
    subject, number, permanent = call.names[0], _version(call.names[1]), call.flag("permanent")
    return call.store.change(lambda state: decisions.delete_version(state, subject, number, permanent=permanent))


def check_compatibility(call: Call) -> Any:
    """With one version as if it were the last; without one, with those that the level asks for.

    What would be the first version of a subject fits `latest`, as Confluent's registry has it.
    """
    subject, schema = call.names[0], _schema(call)
    number = _version(call.names[1]) if len(call.names) > 1 else None

    def answer(state: State) -> list[str]:
        if number is not None:
            versions = [state.version(subject, number).version]
        else:
            live = [version.version for version in state.live_versions(subject)]
            versions = live[-1:] if len(call.names) > 1 else live
        kept, parsed = decisions.prepared(state, schema)
        return decisions.check(state, subject, kept, parsed, versions)

    problems = call.fresh(answer)
    messages = {"messages": problems} if call.flag("verbose") else {}
    return {"is_compatible": not problems, **messages}


def list_schemas(call: Call) -> Any:
    prefix = call.query.get("subjectPrefix", "").removeprefix(":*:")

    def answer(state: State) -> Any:
        subjects = [s for s in state.subjects(with_deleted=call.flag("deleted")) if s.startswith(prefix)]
        found = [v for s in subjects for v in state.versions(s, with_deleted=call.flag("deleted"))]
        if call.flag("latestOnly"):
            found = list({version.subject: version for version in found}.values())
        return [version.as_json() for version in found]

    return call.page(call.fresh(answer))


def list_kinds(call: Call) -> Any:
    return [*KINDS]


def get_schema(call: Call) -> Any:
    schema_id = _id(call.names[0])
    return _known(call, lambda state: _by_id(state, schema_id, state.schema(schema_id), call))


def get_schema_text(call: Call) -> Any:
    return Text(get_schema(call)["schema"])


def get_by_guid(call: Call) -> Any:
    return _known(call, lambda state: _by_id(state, *state.by_guid(call.names[0]), call))


def _by_id(state: State, schema_id: int, schema: Schema, call: Call) -> Any:
    shown = _in_format(state, schema.as_json(), schema, call.query.get("format"))
    highest = {"maxId": state.highest_id} if call.flag("fetchMaxId") else {}
    return {"id": schema_id, "guid": guid(schema), **shown, **highest}


def _known(call: Call, question: Callable[[State], Any]) -> Any:
    """Look it up in memory. What is not found is looked up again after reading the topic: another registry may have
    registered it."""
    try:
        return call.store.read(question)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return call.fresh(question)


def _versions_of_id(call: Call) -> list[Version]:
    schema_id, subject = _id(call.names[0]), call.query.get("subject")

    def answer(state: State) -> list[Version]:
        state.schema(schema_id)
        wanted = [v for v in state.everything() if v.id == schema_id and (call.flag("deleted") or not v.deleted)]
        return [version for version in wanted if subject in (None, "", version.subject)]

    found: list[Version] = call.fresh(answer)
    return found


def list_subjects_of_id(call: Call) -> Any:
    return call.page(sorted({version.subject for version in _versions_of_id(call)}))


def list_versions_of_id(call: Call) -> Any:
    return call.page([{"subject": v.subject, "version": v.version} for v in _versions_of_id(call)])


def get_config(call: Call) -> Any:
    return {"compatibilityLevel": _setting(call, State.level, 40408, "compatibility")}


def _setting(call: Call, look: Callable[[State, str | None], str | None], code: int, what: str) -> Any:
    """What is set for the subject of the path, or for all subjects if it names none or `defaultToGlobal` is given."""
    subject = call.names[0] if call.names else None

    def answer(state: State) -> str:
        found = look(state, subject)
        if found is None and call.flag("defaultToGlobal"):
            found = look(state, None)
        if found is None:
            raise Refusal(code, f"Subject '{subject}' does not have subject-level {what} configured")
        return found

    return call.fresh(answer)


def set_config(call: Call) -> Any:
    subject = call.names[0] if call.names else None
    other = sorted(name for name, value in call.body.items() if name not in _LEVEL_NAMES and value is not None)
    if other:
        raise Refusal(422, f"{other[0]} is not supported: only compatibility can be set")
    level = next((str(call.body[name]) for name in _LEVEL_NAMES if call.body.get(name)), "")
    return {"compatibility": call.store.change(lambda state: decisions.set_level(state, subject, level))}


_LEVEL_NAMES: Final = ("compatibility", "compatibilityLevel")


def delete_config(call: Call) -> Any:
    subject = call.names[0] if call.names else None
    return {"compatibilityLevel": call.store.change(lambda state: decisions.delete_level(state, subject))}


def get_mode(call: Call) -> Any:
    return {"mode": _setting(call, State.mode, 40409, "mode")}


def set_mode(call: Call) -> Any:
    subject = call.names[0] if call.names else None
    mode, force = str(call.body.get("mode", "")), call.flag("force")
    return {"mode": call.store.change(lambda state: decisions.set_mode(state, subject, mode, force=force))}


def delete_mode(call: Call) -> Any:
    return {"mode": call.store.change(lambda state: decisions.delete_mode(state, call.names[0]))}


def list_nothing(call: Call) -> Any:
    """Associations of topics with subjects, which newer clients ask for: there are none."""
    return []


class Text(NamedTuple):
    """An answer that is a schema alone."""

    text: str


Answer = Callable[[Call], Any]
_SUBJECT: Final = "subjects/*"
ROUTES: Final[Mapping[tuple[str, tuple[str, ...]], Answer]] = {
    (method, tuple(path.split("/"))): answer
    for method, path, answer in (
        ("GET", "", lambda call: {}),
        ("GET", "subjects", list_subjects),
        ("POST", _SUBJECT, look_up),
        ("DELETE", _SUBJECT, delete_subject),
        ("GET", f"{_SUBJECT}/metadata", get_newest_with_metadata),
        ("GET", f"{_SUBJECT}/versions", list_versions),
        ("POST", f"{_SUBJECT}/versions", register),
        ("GET", f"{_SUBJECT}/versions/*", get_version),
        ("DELETE", f"{_SUBJECT}/versions/*", delete_version),
        ("GET", f"{_SUBJECT}/versions/*/schema", get_version_text),
        ("GET", f"{_SUBJECT}/versions/*/referencedby", list_referring),
        ("POST", f"compatibility/{_SUBJECT}/versions", check_compatibility),
        ("POST", f"compatibility/{_SUBJECT}/versions/*", check_compatibility),
        ("GET", "schemas", list_schemas),
        ("GET", "schemas/types", list_kinds),
        ("GET", "schemas/ids/*", get_schema),
        ("GET", "schemas/ids/*/schema", get_schema_text),
        ("GET", "schemas/ids/*/subjects", list_subjects_of_id),
        ("GET", "schemas/ids/*/versions", list_versions_of_id),
        ("GET", "schemas/guids/*", get_by_guid),
        ("GET", "config", get_config),
        ("PUT", "config", set_config),
        ("DELETE", "config", delete_config),
        ("GET", "config/*", get_config),
        ("PUT", "config/*", set_config),
        ("DELETE", "config/*", delete_config),
        ("GET", "mode", get_mode),
        ("PUT", "mode", set_mode),
        ("GET", "mode/*", get_mode),
        ("PUT", "mode/*", set_mode),
        ("DELETE", "mode/*", delete_mode),
        ("GET", "contexts", lambda call: ["."]),
        ("GET", "associations/resources/*/*", list_nothing),
        ("GET", "v1/metadata/id", lambda call: {"scope": {"path": [], "clusters": {}}, "id": ""}),
        ("GET", "v1/metadata/version", lambda call: {"version": __version__, "commitId": ""}),
    )
}


def find(method: str, path: list[str]) -> tuple[Answer, tuple[str, ...]] | None:
    """What answers a request, and the variable parts of its path; None if nothing does."""
    for (known, pattern), answer in ROUTES.items():
        if known == method and _fits(pattern, path):
            return answer, tuple(given for part, given in zip(pattern, path, strict=True) if part == "*")
    return None


def is_known(path: list[str]) -> bool:
    """Whether a request of any method has this path."""
    return any(_fits(pattern, path) for _, pattern in ROUTES)


def _fits(pattern: tuple[str, ...], path: list[str]) -> bool:
    return len(pattern) == len(path) and all(part in ("*", given) for part, given in zip(pattern, path, strict=True))
