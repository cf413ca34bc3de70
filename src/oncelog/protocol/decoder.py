"""Writes the Python source of a decoder for one message class in one version.

Theory of operation. All structs of a message are unrolled into one function over the data `d`, its size `n` and the
position `p`. Values of fixed size that follow each other, up to and including the first byte of the next length, count
or tag section, are read by one `struct` call (a "run"), straight into the attributes of the message:

    m1.max_wait_ms, m1.min_bytes, k = u2(d, p); p += 9

A length or count is compared with what is left of the data before anything is allocated for it. What reads beyond the
end raises from `struct` or indexing and becomes a MalformedRequest around the whole function, so the common path has
no checks for it.

An element can be one byte on the wire and hundreds in memory, and each is work for a broker that does one thing at a
time. So the elements of a request are bounded, over all its arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from oncelog.protocol.primitives import MalformedRequest, Readable, TooManyElements, read_uvarint
from oncelog.protocol.schema import FRESH, Field, Message
from oncelog.protocol.source import FIXED, UUID_BYTES, SourceWriter

STRING_BYTES_MAX: Final = 32_767
REQUEST_ELEMENTS_MAX: Final = 200_000
"""Topics, partitions, groups, numbers, tags and so on in one request."""
RECORDS_REQUEST_ELEMENTS_MAX: Final = 50_000
"""In one that may have records: it is long for their sake."""
TAGS_MAX: Final = 1_000
"""Tagged fields of one struct."""


def make_decoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """A function of data and position that returns the message and the position after it. That of a request takes the
    most elements that it may have, and raises TooManyElements."""
    writer = _DecoderWriter(cls, version)
    return writer.write()


class _DecoderWriter(SourceWriter):
    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(version, version >= cls.FLEXIBLE)
        self._cls = cls
        self._run: list[tuple[str, str]] = []
        self._keeps_views = self.has_records(cls)
        self._counts_elements = cls.__name__.endswith("Request")
        self._elements_max = RECORDS_REQUEST_ELEMENTS_MAX if self._keeps_views else REQUEST_ELEMENTS_MAX
        self.scope.update(
            struct_error=struct.error,
            unpack_from=struct.unpack_from,
            new=object.__new__,
            MalformedRequest=MalformedRequest,
            TooManyElements=TooManyElements,
            more=_rest_of_uvarint,
            skip_tags=skip_tags,
            tag_head=_tag_head,
            uuid_of=_uuid_of,
            label=f"{cls.__name__} v{version}",
        )

    def write(self) -> Callable[..., Any]:
        room = f", room={self._elements_max}" if self._counts_elements else ""
        with self.block(f"def decode(d, p=0{room}):"):
            # Slices of a view are not copies, which matters for record data; all else is small and faster as `bytes`.
            container = "memoryview" if self._keeps_views else "bytes"
            with self.block(f"if d.__class__ is not {container}:"):
                self.line(f"d = {container}(d)")
            self.line("n = len(d)")
            if self._counts_elements:
                self.line("most = room")
            with self.block("try:"):
                self._struct(self._cls, "m", ())
                self._flush()
                self.line("return m, p")
            with self.block("except (struct_error, IndexError, UnicodeDecodeError) as error:"):
                self.line("raise MalformedRequest(f'{label}: {error} at byte {p} of {n}') from error")
        return self.build("decode", f"<decoder of {self._cls.__name__} v{self.version}>")  # type: ignore[no-any-return]

    def _struct(self, cls: type[Message], target: str, path: tuple[str, ...]) -> None:
        self.line(f"{target} = new({self.constant('c', cls)})")
        tagged = self.tagged_fields(cls)
        for name, field in cls.FIELDS.items():
            if not field.is_in(self.version) or field.tag is not None:
                self.line(f"{target}.{name} = {self._default(field)}")
        for name, field in self.plain_fields(cls):
            self._value(field, f"{target}.{name}", (*path, name))
        if self.flexible:
            self._tags(tagged, target, path)

    def _default(self, field: Field) -> str:
        if field.default is not FRESH:
            return self.constant("k", field.default) if _needs_name(field.default) else repr(field.default)
        return "[]" if field.struct is None else f"{self.constant('c', field.struct)}()"

    def _add_to_run(self, target: str, format_char: str) -> None:
        self._run.append((target, format_char))

    def _flush(self) -> None:
        if not self._run:
            return
        packer = struct.Struct(">" + "".join(char for _, char in self._run))
        targets = ", ".join(target for target, _ in self._run)
        if packer.format == ">B":
            self.line(f"{targets} = d[p]")
        else:
            self.scope[name := self.fresh("u")] = packer.unpack_from
            self.line(f"{targets}, = {name}(d, p)")
        self.line(f"p += {packer.size}")
        self._run.clear()

    def _value(self, field: Field, target: str, path: tuple[str, ...]) -> None:
        if field.kind in FIXED:
            self._add_to_run(target, FIXED[field.kind])
        elif field.kind == "uuid":
            raw = self.fresh("b")
            self._add_to_run(raw, f"{UUID_BYTES}s")
            self._flush()
            self.line(f"{target} = uuid_of({raw})")
        elif field.kind == "struct":
            self._struct_value(field, target, path)
        elif field.kind == "array":
            self._array(field, target, path)
        else:
            self._sized(field, target, path)

    def _length(self, kind: str) -> str:
        """Read a length or count; compact ones are one more than what they count, so that 0 is null."""
        length = self.fresh("k")
        self._add_to_run(length, self.length_format(kind))
        self._flush()
        if self.flexible:
            with self.block(f"if {length} > 127:"):
                self.line(f"{length}, p = more(d, p, {length})")
        return length

    def _sized(self, field: Field, target: str, path: tuple[str, ...]) -> None:
        length = self._length(field.kind)
        nullable = field.is_nullable_in(self.version)
        end = self.fresh("e")

        def read() -> None:
            self.line(f"{end} = p + {length}{' - 1' if self.flexible else ''}")
            if field.kind == "string" and self.flexible:
                # A compact string could be longer than the int16 of the other versions and of our own log's records.
                with self.block(f"if {end} - p > {STRING_BYTES_MAX}:"):
                    self._refuse(path, f"is a string of {{{end} - p}} bytes, at most {STRING_BYTES_MAX} are allowed")
            with self.block(f"if not p <= {end} <= n:"):
                self._refuse(path, f"claims {{{end} - p}} bytes, {{n - p}} are left")
            self.line(f"{target} = {self._slice(field.kind, end)}")
            self.line(f"p = {end}")

        self._unless_null(nullable, length, target, read)

    def _slice(self, kind: str, end: str) -> str:
        if kind == "string":
            return f"d[p:{end}].tobytes().decode()" if self._keeps_views else f"d[p:{end}].decode()"
        if kind == "bytes" and self._keeps_views:
            return f"d[p:{end}].tobytes()"
        return f"d[p:{end}]"

    def _unless_null(self, nullable: bool, length: str, target: str, read: Callable[[], None]) -> None:
        if not nullable:
            read()
            return
        with self.block(f"if {length}:" if self.flexible else f"if {length} >= 0:"):
            read()
        with self.block("else:"):
            self.line(f"{target} = None")

    def _array(self, field: Field, target: str, path: tuple[str, ...]) -> None:
        count = self._length("array")
        element = field.element
        if element is None:
            raise TypeError(f"{'.'.join(path)} has no element type")

        def read() -> None:
            if self.flexible:
                self.line(f"{count} -= 1")
            size_min = self.size_min(element)
            with self.block(f"if not 0 <= {count} <= (n - p){f' // {size_min}' if size_min > 1 else ''}:"):
                self._refuse(path, f"claims {{{count}}} elements, {{n - p}} bytes are left")
            self._count(count, path)
            if element.kind in FIXED:
                self._fixed_elements(element, count, size_min, target)
            else:
                self._elements(element, count, target, path)

        self._unless_null(field.is_nullable_in(self.version), count, target, read)

    def _count(self, count: str, path: tuple[str, ...]) -> None:
        if self._counts_elements:
            self.line(f"room -= {count}")
            with self.block("if room < 0:"):
                self._refuse(path, "makes more than {most} elements in one request", "TooManyElements")

    def _fixed_elements(self, element: Field, count: str, size: int, target: str) -> None:
        self.line(f"{target} = [*unpack_from('>%d{FIXED[element.kind]}' % {count}, d, p)]")
        self.line(f"p += {count}{f' * {size}' if size > 1 else ''}")

    def _elements(self, element: Field, count: str, target: str, path: tuple[str, ...]) -> None:
        items, item = self.fresh("a"), self.fresh("m")
        self.line(f"{items} = []")
        with self.block(f"for _ in range({count}):"):
            self._value(element, item, path)
            self._flush()
            self.line(f"{items}.append({item})")
        self.line(f"{target} = {items}")

    def _struct_value(self, field: Field, target: str, path: tuple[str, ...]) -> None:
        if field.struct is None:
            raise TypeError(f"{'.'.join(path)} has no struct")
        inner = target if "." not in target else self.fresh("m")
        if not field.is_nullable_in(self.version):
            self._struct(field.struct, inner, path)
        else:
            present = self.fresh("k")
            self._add_to_run(present, "b")
            self._flush()
            # Null is -1, or 0 where the struct is a tagged field; Kafka writes 1 before one that is there.
            with self.block(f"if {present} > 0:"):
                self._struct(field.struct, inner, path)
                self._flush()
            with self.block("else:"):
                self.line(f"{inner} = None")
        if inner != target:
            self._flush()
            self.line(f"{target} = {inner}")

    def _tags(self, tagged: list[tuple[str, Field]], target: str, path: tuple[str, ...]) -> None:
        count = self.fresh("t")
        self._add_to_run(count, "B")
        self._flush()
        with self.block(f"if {count}:"):
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, p = more(d, p, {count})")
            self._count(count, (*path, "tags"))
            if not tagged:
                self.line(f"p = skip_tags(d, p, {count})")
                return
            tag, end = self.fresh("g"), self.fresh("e")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, {end}, p = tag_head(d, p)")
                word = "if"
                for name, field in tagged:
                    with self.block(f"{word} {tag} == {field.tag}:"):
                        self._value(field, f"{target}.{name}", (*path, name))
                        self._flush()
                        with self.block(f"if p > {end}:"):
                            self._refuse((*path, name), "is longer than its tagged size")
                    word = "elif"
                self.line(f"p = {end}")

    def _refuse(self, path: tuple[str, ...], what: str, error: str = "MalformedRequest") -> None:
        self.line(f"raise {error}(f'{{label}}: {'.'.join(path)} {what}')")


def _needs_name(value: object) -> bool:
    return not (value is None or isinstance(value, int | str | bytes))


def _rest_of_uvarint(data: Readable, position: int, first: int) -> tuple[int, int]:
    """The uvarint of more than one byte whose first byte has just been read. Sizes of record data come through here."""
    second = data[position]
    if second < 0x80:
        return first & 0x7F | second << 7, position + 1
    third = data[position + 1]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 2
    return read_uvarint(data, position - 1)


def _tag_head(data: Readable, position: int) -> tuple[int, int, int]:
    """Tag, the position after its value, and the position of its value."""
    tag, size = data[position], data[position + 1]
    if tag < 0x80 and size < 0x80:
        position += 2
    else:
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
    end = position + size
    if end > len(data):
        raise MalformedRequest(f"tag {tag} claims {size} bytes, {len(data) - position} are left")
    return tag, end, position


def skip_tags(data: Readable, position: int, count: int) -> int:
    """The position after so many tags."""
    if count > TAGS_MAX:
        raise MalformedRequest(f"there are {count} tags in one place, at most {TAGS_MAX} are allowed")
    for _ in range(count):
        _, position, _ = _tag_head(data, position)
    return position


@lru_cache(maxsize=4096)
def _uuid_of(raw: bytes) -> UUID:
    """Topic ids come again and again, and making a UUID costs more than the rest of a topic."""
    return UUID(bytes=raw)
