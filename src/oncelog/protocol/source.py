"""What the decoder's and the encoder's source writers share: lines, names, and the sizes of things on the wire."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from oncelog.protocol.schema import Field, Message

FIXED: Final[dict[str, str]] = {
    "boolean": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
}
"""Kinds of one fixed size, with their format characters in `struct`."""

UUID_BYTES: Final = 16


class SourceWriter:
    """Collects the lines of one generated function and the objects it refers to."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.scope: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name in the generated function for an object of ours."""
        for name, known in self.scope.items():
            if known is value:
                return name
        name = self.fresh(prefix)
        self.scope[name] = value
        return name

    def build(self, function: str, filename: str) -> Any:
        exec(compile("\n".join(self._lines), filename, "exec"), self.scope)
        return self.scope[function]

    def plain_fields(self, cls: type[Message]) -> list[tuple[str, Field]]:
        return [(name, f) for name, f in cls.FIELDS.items() if f.is_in(self.version) and f.tag is None]

    def tagged_fields(self, cls: type[Message]) -> list[tuple[str, Field]]:
        tagged = [(name, f) for name, f in cls.FIELDS.items() if f.is_in(self.version) and f.tag is not None]
        return sorted(tagged, key=lambda item: item[1].tag or 0)

    def length_format(self, kind: str) -> str:
        """How a length or count starts: in a flexible version as a uvarint, of which one byte is nearly always all."""
        if self.flexible:
            return "B"
        return "h" if kind == "string" else "i"

    def size_min(self, field: Field) -> int:
        """The least bytes a value of this field can take, which bounds how many can be in what is left of a frame."""
        if field.kind in FIXED:
            return struct.calcsize(">" + FIXED[field.kind])
        if field.kind == "uuid":
            return UUID_BYTES
        if field.kind == "struct" and field.struct is not None:
            if field.is_nullable_in(self.version):
                return 1
            inner = sum(self.size_min(f) for _, f in self.plain_fields(field.struct))
            return inner + self.flexible
        return struct.calcsize(">" + self.length_format(field.kind))

    def has_records(self, cls: type[Message]) -> bool:
        return any(_holds_records(field) for field in cls.FIELDS.values())


def _holds_records(field: Field) -> bool:
    if field.element is not None:
        return _holds_records(field.element)
    if field.struct is not None:
        return any(_holds_records(inner) for inner in field.struct.FIELDS.values())
    return field.kind == "records"
