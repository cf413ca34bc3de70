"""A schema as it is registered: its text, its kind, and the schemas that it refers to. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
REFERENCES_MAX: Final = 1000
"""Of one schema, with the references of its references."""


class InvalidSchema(ValueError):
    """A text that is no schema of its kind, or a reference that leads nowhere."""


class MissingReference(InvalidSchema):
    """A schema that is referred to is not known, or not yet."""


class Reference(NamedTuple):
    """`name` is how the schema speaks of it: a full name in Avro, a URI in JSON Schema, an import in Protobuf."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Schema:
    text: str
    kind: str = AVRO
    references: tuple[Reference, ...] = ()
    notes: str = ""
    """Metadata and rules, which are for clients: the text of a JSON object, empty if there are none."""

    def __post_init__(self) -> None:
        """Half a surrogate pair is a character for JSON, and none for a record or an answer."""
        try:
            "".join((self.text, self.kind, *(part for r in self.references for part in r[:2]))).encode()
        except UnicodeEncodeError:
            raise InvalidSchema("it has half a surrogate pair, which is no character") from None

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """The form that the registry's requests and records have. Raises InvalidSchema."""
        text, kind = given.get("schema"), given.get("schemaType") or AVRO
        if not isinstance(text, str) or not text.strip():
            raise InvalidSchema("the request has no schema")
        notes = {name: given[name] for name in ("metadata", "ruleSet") if given.get(name)}
        return cls(text, str(kind), _references(given.get("references")), _canonical(notes) if notes else "")

    def as_json(self) -> dict[str, Any]:
        """Avro is not named, as Confluent's registry leaves it out."""
        shown: dict[str, Any] = {} if self.kind == AVRO else {"schemaType": self.kind}
        if self.references:
            shown["references"] = [reference.as_json() for reference in self.references]
        if self.notes:
            shown |= json.loads(self.notes)
        return {**shown, "schema": self.text}


def load_json(text: str) -> Any:
    """Raises ValueError also for numbers that JSON does not have: Python takes NaN, and 1e999 for Infinity."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _references(given: Any) -> tuple[Reference, ...]:
    if given is None:
        return ()
    try:
        return tuple(Reference(str(one["name"]), str(one["subject"]), int(one["version"])) for one in given)
    except (TypeError, KeyError, ValueError):
        raise InvalidSchema("references must be a list of objects with name, subject and version") from None


Find = Callable[[Reference], Schema]
"""The schema of a reference; raises InvalidSchema if there is none."""


class ParsedSchema(Protocol):
    """A schema that can be used."""

    @property
    def canonical(self) -> str:
        """The same for two texts that mean the same."""

    def unreadable(self, writer: Any) -> list[str]:
        """Why a reader with this schema cannot read what was written with another of its kind; empty if it can."""

    def encode(self, value: Any) -> bytes:
        """The payload for a value of JSON. Raises ValueError if it does not fit the schema."""

    def decode(self, payload: bytes) -> Any:
        """A value that JSON can have. Raises ValueError."""


def referenced(schema: Schema, find: Find) -> dict[str, Schema]:
    """All that a schema refers to, by name, each behind what it needs itself. Raises InvalidSchema."""
    found: dict[str, Schema] = {}
    _collect(schema, find, found, ())
    return found


def _collect(schema: Schema, find: Find, found: dict[str, Schema], path: tuple[Reference, ...]) -> None:
    for reference in schema.references:
        if reference.name in found:
            continue
        if reference in path:
            raise InvalidSchema(f"the references of {reference.subject} lead back to it")
        if len(found) + len(path) >= REFERENCES_MAX:
            raise InvalidSchema(f"the schema has more than {REFERENCES_MAX} references")
        target = find(reference)
        if target.kind != schema.kind:
            raise InvalidSchema(f"{reference.name} is a schema of the kind {target.kind}, not {schema.kind}")
        _collect(target, find, found, (*path, reference))
        found[reference.name] = target
