"""Writes the Python source of an encoder for one message class in one version.

Theory of operation. All structs of a message are unrolled into one function that appends to a bytearray `w`. Values of
fixed size that follow each other, including int16 and int32 lengths and empty tag sections, are packed by one `struct`
call (a "run"). Record data is never copied: the bytearray so far and the record data become buffers of the result, and
a new bytearray takes what follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from oncelog.protocol.primitives import append_uvarint, uvarint
from oncelog.protocol.schema import FRESH, Field, Message
from oncelog.protocol.source import FIXED, SourceWriter

_SMALL_ARRAY_MAX: Final = 16
"""Arrays of numbers up to this size have a packer made once; replica lists are of this kind."""


def make_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """A function of a message that returns a list of buffers."""
    return _EncoderWriter(cls, version).write()


class _EncoderWriter(SourceWriter):
    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(version, version >= cls.FLEXIBLE)
        self._cls = cls
        self._run: list[tuple[str, str]] = []
        self._out = "w"
        self._splits = self.has_records(cls)
        self.scope.update(uv=append_uvarint, pack=struct.pack)

    def write(self) -> Callable[..., Any]:
        with self.block("def encode(m):"):
            self.line("w = bytearray()")
            if self._splits:
                self.line("parts = []")
            self._struct(self._cls, "m")
            self._flush()
            if self._splits:
                self.line("parts.append(w)")
            self.line("return parts" if self._splits else "return [w]")
        return self.build("encode", f"<encoder of {self._cls.__name__} v{self.version}>")  # type: ignore[no-any-return]

    def _struct(self, cls: type[Message], source: str) -> None:
        for name, field in self.plain_fields(cls):
            self._value(field, f"{source}.{name}")
        if self.flexible:
            self._tags(self.tagged_fields(cls), source)

    def _add_to_run(self, format_char: str, expression: str) -> None:
        self._run.append((format_char, expression))

    def _flush(self) -> None:
        """Emit the run. `x` is a zero byte without an argument."""
        if not self._run:
            return
        chars = "".join(char for char, _ in self._run)
        values = ", ".join(expression for char, expression in self._run if char != "x")
        if not values:
            self.line(f"{self._out} += {bytes(len(chars))!r}")
        else:
            self.scope[name := self.fresh("p")] = struct.Struct(">" + chars).pack
            self.line(f"{self._out} += {name}({values})")
        self._run.clear()

    def _value(self, field: Field, source: str) -> None:
        if field.kind in FIXED:
            self._add_to_run(FIXED[field.kind], source)
        elif field.kind == "uuid":
            self._add_to_run("16s", f"{source}.bytes")
        elif field.kind == "struct":
            self._struct_value(field, source)
        else:
            self._nullable_value(field, source)

    def _nullable_value(self, field: Field, source: str) -> None:
        write = {"string": self._string, "array": self._array, "records": self._records, "bytes": self._bytes}
        local = self.fresh("v")
        if not field.is_nullable_in(self.version):
            if field.kind != "string":
                self._flush()
                self.line(f"{local} = {source}")
                source = local
            write[field.kind](field, source)
            return
        self._flush()
        self.line(f"{local} = {source}")
        with self.block(f"if {local} is None:"):
            null = b"\0" if self.flexible else struct.pack(">" + self.length_format(field.kind), -1)
            self.line(f"{self._out} += {null!r}")
        with self.block("else:"):
            write[field.kind](field, local)
            self._flush()

    def _length(self, kind: str, expression: str) -> None:
        if not self.flexible:
            self._add_to_run(self.length_format(kind), expression)
            return
        self._flush()
        length = self.fresh("k")
        self.line(f"{length} = {expression} + 1")
        with self.block(f"if {length} < 128:"):
            self.line(f"{self._out}.append({length})")
        with self.block("else:"):
            self.line(f"uv({self._out}, {length})")

    def _string(self, _field: Field, source: str) -> None:
        raw = self.fresh("b")
        self.line(f"{raw} = {source}.encode()")
        self._bytes(_field, raw)

    def _bytes(self, field: Field, source: str) -> None:
        self._length(field.kind, f"len({source})")
        self._flush()
        self.line(f"{self._out} += {source}")

    def _records(self, field: Field, source: str) -> None:
        self._length(field.kind, f"len({source})")
        self._flush()
        self.line(f"parts += w, {source}")
        self.line("w = bytearray()")

    def _array(self, field: Field, source: str) -> None:
        element = field.element
        if element is None:
            raise TypeError("an array has no element type")
        if element.kind in FIXED:
            self._fixed_elements(element, source)
            return
        self._length("array", f"len({source})")
        self._flush()
        item = self.fresh("m")
        with self.block(f"for {item} in {source}:"):
            self._value(element, item)
            self._flush()

    def _fixed_elements(self, element: Field, source: str) -> None:
        count = self.fresh("n")
        char = FIXED[element.kind]
        head = self.length_format("array")
        small = self.constant("s", _small_array_packers(head, char))
        self._flush()
        self.line(f"{count} = len({source})")
        with self.block(f"if {count} <= {_SMALL_ARRAY_MAX}:"):
            self.line(f"{self._out} += {small}[{count}]({count}{' + 1' if self.flexible else ''}, *{source})")
        with self.block("else:"):
            self._length("array", count)
            self._flush()
            self.line(f"{self._out} += pack('>%d{char}' % {count}, *{source})")

    def _struct_value(self, field: Field, source: str) -> None:
        if field.struct is None:
            raise TypeError("a struct field has no struct")
        if not field.is_nullable_in(self.version):
            inner = source
            if "." in source:
                inner = self.fresh("m")
                self._flush()
                self.line(f"{inner} = {source}")
            self._struct(field.struct, inner)
            return
        self._flush()
        inner = self.fresh("m")
        self.line(f"{inner} = {source}")
        with self.block(f"if {inner} is None:"):
            self.line(f"{self._out} += b'\\xff'")
        with self.block("else:"):
            self._add_to_run("b", "1")
            self._struct(field.struct, inner)
            self._flush()

    def _tags(self, tagged: list[tuple[str, Field]], source: str) -> None:
        """A field at its default is left out, and mostly all are: the zero byte is the short way through."""
        if not tagged:
            self._add_to_run("x", "")
            return
        self._flush()
        is_set = {name: self._is_set(field, f"{source}.{name}") for name, field in tagged}
        with self.block(f"if {' or '.join(is_set.values())}:"):
            count, section, outer = self.fresh("n"), self.fresh("w"), self._out
            self.line(f"{count} = 0")
            self.line(f"{section} = bytearray()")
            for name, field in tagged:
                with self.block(f"if {is_set[name]}:"):
                    self._out = self.fresh("w")
                    self.line(f"{self._out} = bytearray()")
                    self._value(field, f"{source}.{name}")
                    self._flush()
                    self.line(f"{count} += 1")
                    self.line(f"{section} += {uvarint(field.tag or 0)!r}")
                    self.line(f"uv({section}, len({self._out}))")
                    self.line(f"{section} += {self._out}")
            self._out = outer
            self.line(f"uv({outer}, {count})")
            self.line(f"{outer} += {section}")
        with self.block("else:"):
            self.line(f"{self._out}.append(0)")

    def _is_set(self, field: Field, source: str) -> str:
        if field.default is FRESH:
            return source if field.kind == "array" else f"{source} != {self.constant('d', field.fresh_default())}"
        if field.default is None:
            return f"{source} is not None"
        if field.kind == "struct" or field.kind == "uuid":
            name = self.constant("d", field.default)
            return f"({source} is not {name} and {source} != {name})"
        return f"{source} != {field.default!r}"


_packers: dict[str, list[Any]] = {}


def _small_array_packers(head: str, char: str) -> list[Any]:
    """By count, a function that packs the count and the numbers."""
    if head + char not in _packers:
        _packers[head + char] = [struct.Struct(f">{head}{n}{char}").pack for n in range(_SMALL_ARRAY_MAX + 1)]
    return _packers[head + char]
