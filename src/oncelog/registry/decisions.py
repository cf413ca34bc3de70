"""What changes a registry: each function decides, from the state, the records of one transaction and the answer.

The records are applied when they are committed. No I/O.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from oncelog.registry import records
from oncelog.registry.errors import Refusal, invalid_schema, not_permitted, subject_not_found
from oncelog.registry.records import Record, Version
from oncelog.registry.state import MODES, State
from oncelog.schemas.compatibility import LEVELS, incompatibilities
from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import AVRO, JSON, InvalidSchema, ParsedSchema, Schema
from oncelog.schemas.wire_format import ID_MAX

SUBJECT_CHARACTERS_MAX: Final = 500
_CANONICAL_TEXT: Final = (AVRO, JSON)
"""Kinds that are kept without the spaces of their text; a .proto file is kept as it was written."""


class Decision(NamedTuple):
    records: list[Record]
    answer: Any


class Wanted(NamedTuple):
    """A request to register; id and version are for subjects in the mode IMPORT."""

    subject: str
    schema: Schema
    id: int | None = None
    version: int | None = None


def prepared(state: State, schema: Schema) -> tuple[Schema, ParsedSchema]:
    """A schema as it is kept, and what it means. Raises 42201."""
    try:
        parsed = parse(schema, state.referenced_schema)
        text = parsed.canonical if schema.kind in _CANONICAL_TEXT else schema.text.strip()
        return replace(schema, text=text), parsed
    except InvalidSchema as error:
        raise invalid_schema(error) from error


def find(state: State, schema: Schema, parsed: ParsedSchema, versions: list[Version]) -> Version | None:
    """The newest version that has this schema: the same text, or for Protobuf one that means the same."""
    wanted = records.digest(schema)
    for version in reversed(versions):
        if records.digest(version.schema) == wanted:
            return version
    if schema.kind in _CANONICAL_TEXT:
        return None
    return next((v for v in reversed(versions) if _means_the_same(state, v.schema, schema, parsed)), None)


def _means_the_same(state: State, known: Schema, schema: Schema, parsed: ParsedSchema) -> bool:
    if (known.kind, known.references, known.notes) != (schema.kind, schema.references, schema.notes):
        return False
    try:
        return parse(known, state.referenced_schema).canonical == parsed.canonical
    except InvalidSchema:
        # What a deleted version refers to may be gone for good: then nothing can mean the same.
        return False


def register(state: State, wanted: Wanted) -> Decision:
    subject = wanted.subject
    _require_subject(subject)
    mode = state.effective_mode(subject)
    if mode.startswith("READONLY"):
        raise not_permitted(f"Subject {subject} is in read-only mode")
    if mode == "IMPORT":
        return _import(state, wanted)
    if wanted.id is not None or wanted.version is not None:
        raise not_permitted(f"Subject {subject} is not in import mode: id and version are given by the registry")
    schema, parsed = prepared(state, wanted.schema)
    live = state.live_versions(subject)
    known = find(state, schema, parsed, live)
    if known is not None:
        return Decision([], known)
    _require_live_references(state, schema)
    problems = check(state, subject, schema, parsed, [version.version for version in live])
    if problems:
        raise Refusal(
            409,
            f"Schema being registered is incompatible with an earlier schema for subject '{subject}', "
            f"compatibility level {state.effective_level(subject)}: {'; '.join(problems[:10])}",
        )
    numbers = [version.version for version in state.all_versions(subject)]
    schema_id = state.id_of(schema) or state.highest_id + 1
    if schema_id > ID_MAX:
        raise Refusal(50001, "all ids have been given")
    version = Version(subject, max(numbers, default=0) + 1, schema_id, schema)
    return Decision([records.schema_record(version)], version)


def _import(state: State, wanted: Wanted) -> Decision:
    """Take over schemas of another registry with their ids. They were compared there, and are not compared again."""
    schema, _ = prepared(state, wanted.schema)
    if wanted.id is None or not 0 < wanted.id <= ID_MAX:
        raise not_permitted(f"Subject {wanted.subject} is in import mode: the request needs the id of the schema")
    numbers = [version.version for version in state.all_versions(wanted.subject)]
    number = max(numbers, default=0) + 1 if wanted.version is None else wanted.version
    version = Version(wanted.subject, number, wanted.id, schema)
    try:
        other = state.schema(wanted.id)
    except Refusal:
        other = None
    if other is not None and records.digest(other) != records.digest(schema):
        raise Refusal(42207, f"Overwrite new schema with id {wanted.id} is not permitted: it has another schema")
    known = next((v for v in state.all_versions(wanted.subject) if v.version == number), None)
    if known is not None and known.id != wanted.id:
        # Its record would take the place of the only one that tells of the other id.
        raise not_permitted(f"Version {number} of subject {wanted.subject} has the schema with id {known.id}")
    return Decision([records.schema_record(version)], version)


def check(state: State, subject: str, schema: Schema, parsed: ParsedSchema, versions: list[int]) -> list[str]:
    """Why a schema cannot follow these versions of a subject."""

    def load(number: int) -> tuple[str, ParsedSchema]:
        old = state.version(subject, number).schema
        return old.kind, parse(old, state.referenced_schema)

    try:
        return incompatibilities(state.effective_level(subject), (schema.kind, parsed), versions, load)
    except InvalidSchema as error:
        raise invalid_schema(error) from error
    except RecursionError:
        raise invalid_schema("it is nested too deeply to be compared") from None


def delete_version(state: State, subject: str, number: int | None, *, permanent: bool) -> Decision:
    _require_writable(state, subject)
    version = state.version(subject, number, with_deleted=number is not None)
    number = version.version
    if permanent and not version.deleted:
        raise Refusal(
            40407, f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        )
    if not permanent and version.deleted:
        raise Refusal(
            40406, f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
        )
    _require_not_needed(state, version)
    if permanent:
        return Decision(_gone(state, [version]), number)
    return Decision([records.schema_record(records.deleted(version))], number)


def delete_subject(state: State, subject: str, *, permanent: bool) -> Decision:
    _require_writable(state, subject)
    everything, live = state.all_versions(subject), state.live_versions(subject)
    if not everything:
        raise subject_not_found(subject)
    if permanent and live:
        raise Refusal(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
    if not permanent and not live:
        raise Refusal(40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")
    for version in everything if permanent else live:
        _require_not_needed(state, version)
    if not permanent:
        answer = [version.version for version in live]
        return Decision([records.delete_subject_record(subject, live[-1].version)], answer)
    rest = [Record(records.subject_key(keytype, subject), None) for keytype in ("DELETE_SUBJECT", "CONFIG", "MODE")]
    return Decision([*_gone(state, everything), *rest], [version.version for version in everything])


def _gone(state: State, versions: list[Version]) -> list[Record]:
    """Tombstones, and the highest id: without it an id whose records are gone could be given out again."""
    keys = [records.schema_key(version.subject, version.version) for version in versions]
    return [*(Record(key, None) for key in keys), records.highest_id_record(state.highest_id)]


def set_level(state: State, subject: str | None, level: str) -> Decision:
    level = level.upper()
    if level not in LEVELS:
        raise Refusal(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
    _require_writable(state, subject)
    return Decision([records.config_record(subject, level)], level)


def delete_level(state: State, subject: str | None) -> Decision:
    level = state.level(subject)
    if level is None:
        raise Refusal(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
    _require_writable(state, subject)
    return Decision([Record(records.subject_key("CONFIG", subject), None)], level)


def set_mode(state: State, subject: str | None, mode: str, *, force: bool = False) -> Decision:
    mode = mode.upper()
    if mode not in MODES:
        raise Refusal(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
    if mode == "IMPORT" and not force:
        filled = state.subjects() if subject is None else [v.subject for v in state.live_versions(subject)]
        if filled:
            raise not_permitted(f"Cannot import since found existing subjects: {filled[0]}. Set force=true to do so")
    return Decision([records.mode_record(subject, mode)], mode)


def delete_mode(state: State, subject: str) -> Decision:
    mode = state.mode(subject)
    if mode is None:
        raise Refusal(40409, f"Subject '{subject}' does not have subject-level mode configured")
    return Decision([Record(records.subject_key("MODE", subject), None)], mode)


def _require_subject(subject: str) -> None:
    if not subject or len(subject) > SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise Refusal(42208, f"The specified subject {subject[:50]!r} is not a valid subject.")
    if subject.startswith(":."):
        raise Refusal(42208, "Contexts of subjects are not supported: leave out the part between colons.")


def _require_writable(state: State, subject: str | None) -> None:
    mode = state.mode(None) if subject is None else state.effective_mode(subject)
    if mode is not None and mode.startswith("READONLY"):
        raise not_permitted(f"Subject {subject or 'null'} is in read-only mode")


def _require_live_references(state: State, schema: Schema) -> None:
    for reference in schema.references:
        if not any(v.version == reference.version for v in state.live_versions(reference.subject)):
            raise invalid_schema(f"{reference.name}: version {reference.version} of {reference.subject} was deleted")


def _require_not_needed(state: State, version: Version) -> None:
    needed_by = state.referring_to(version.subject, version.version)
    if needed_by:
        place = f"{needed_by[0].subject} version {needed_by[0].version}"
        raise Refusal(
            42206,
            f"One or more references exist to version {version.version} of {version.subject}: {place} needs it.",
        )
