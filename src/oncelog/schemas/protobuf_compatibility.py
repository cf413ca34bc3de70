"""Whether messages of one Protobuf schema can be read with another. No I/O.

Fields are found by their numbers. The rules are those of Protobuf's guide for updating messages, with what Confluent's
registry adds: the package stays, a message may not vanish, and fields may not come together in a oneof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_F: Final = FieldDescriptorProto
_GROUPS: Final[Mapping[int, str]] = {
    **dict.fromkeys(
        (_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM), "varint"
    ),
    **dict.fromkeys((_F.TYPE_SINT32, _F.TYPE_SINT64), "zigzag varint"),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((_F.TYPE_FIXED32, _F.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_F.TYPE_FIXED64, _F.TYPE_SFIXED64), "fixed64"),
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_MESSAGE: "message",
    _F.TYPE_GROUP: "group",
}
"""Types of one group can be exchanged for each other."""


class Files(NamedTuple):
    root: FileDescriptorProto
    others: tuple[FileDescriptorProto, ...]


def unreadable(reader: Files, writer: Files) -> list[str]:
    if reader.root.package != writer.root.package:
        return [f"the package changed from {writer.root.package!r} to {reader.root.package!r}"]
    return _Comparison(_types(reader), _types(writer)).messages(reader.root.message_type, writer.root.message_type, "")


def _types(files: Files) -> dict[str, DescriptorProto]:
    """Messages by full name, with a dot in front as fields name them."""
    found: dict[str, DescriptorProto] = {}
    for file in (*files.others, files.root):
        prefix = f".{file.package}" if file.package else ""
        for message in file.message_type:
            found.update(_nested(message, prefix))
    return found


def _nested(message: DescriptorProto, prefix: str) -> Iterator[tuple[str, DescriptorProto]]:
    name = f"{prefix}.{message.name}"
    yield name, message
    for inner in message.nested_type:
        yield from _nested(inner, name)


class _Comparison:
    def __init__(
        self, reader_types: Mapping[str, DescriptorProto], writer_types: Mapping[str, DescriptorProto]
    ) -> None:
        self._reader_types = reader_types
        self._writer_types = writer_types
        self._compared: set[tuple[str, str]] = set()

    def messages(self, reader: Any, writer: Any, path: str) -> list[str]:
        known = {message.name: message for message in reader}
        found: list[str] = []
        for message in writer:
            place = f"{path}/{message.name}"
            if message.options.map_entry:
                continue
            if message.name not in known:
                found.append(f"{place}: the message was removed")
            else:
                found += self.message(known[message.name], message, place)
        return found

    def message(self, reader: DescriptorProto, writer: DescriptorProto, path: str) -> list[str]:
        now, before = {f.number: f for f in reader.field}, {f.number: f for f in writer.field}
        found = _oneofs(reader, writer, path)
        for number in sorted(now.keys() | before.keys()):
            place = f"{path}/{number}"
            if number in now and number in before:
                found += self._field(now[number], before[number], place)
            elif (now.get(number) or before[number]).label == _F.LABEL_REQUIRED:
                found.append(f"{place}: a required field was {'added' if number in now else 'removed'}")
        return found + self.messages(reader.nested_type, writer.nested_type, path)

    def _field(self, reader: FieldDescriptorProto, writer: FieldDescriptorProto, place: str) -> list[str]:
        kind, written = _GROUPS.get(reader.type, "unknown"), _GROUPS.get(writer.type, "unknown")
        if kind != written:
            return [f"{place}: {written} became {kind}"]
        if kind == "message":
            return self._message_field(reader, writer, place)
        is_repeated = reader.label == _F.LABEL_REPEATED
        if is_repeated != (writer.label == _F.LABEL_REPEATED) and kind != "string or bytes":
            return [f"{place}: a number became {'repeated' if is_repeated else 'single'}"]
        return []

    def _message_field(self, reader: FieldDescriptorProto, writer: FieldDescriptorProto, place: str) -> list[str]:
        names = (reader.type_name, writer.type_name)
        now, before = self._reader_types.get(names[0]), self._writer_types.get(names[1])
        if now is None or before is None:
            # Types that come with Protobuf.
            return [] if names[0] == names[1] else [f"{place}: {names[1]} became {names[0]}"]
        if now.options.map_entry != before.options.map_entry:
            return [f"{place}: {'became' if now.options.map_entry else 'was'} a map"]
        if not now.options.map_entry and now.name != before.name:
            return [f"{place}: {names[1]} became {names[0]}"]
        if names in self._compared:
            return []
        self._compared.add(names)
        return self.message(now, before, place)


def _oneofs(reader: DescriptorProto, writer: DescriptorProto, path: str) -> list[str]:
    """Fields that could be set together must not exclude each other; a choice must not lose some of its fields."""
    now, before = _choices(reader), _choices(writer)
    numbers = {field.number for field in reader.field}
    old_numbers = {field.number for field in writer.field}
    former = {number: name for name, members in before.items() for number in members}
    found = []
    for name, members in now.items():
        origins = {former.get(number, number) for number in members if number in old_numbers}
        if len(origins) > 1:
            found.append(f"{path}/{name}: fields that were independent exclude each other now")
    for name, members in before.items():
        lost = sorted(members - numbers)
        if lost and (name in now or members & numbers):
            found.append(f"{path}/{name}: the field {lost[0]} of the oneof was removed")
    return found


def _choices(message: DescriptorProto) -> dict[str, set[int]]:
    """The `oneof`s of a message, without those that proto3 makes for `optional` fields."""
    found: dict[str, set[int]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            found.setdefault(message.oneof_decl[field.oneof_index].name, set()).add(field.number)
    return found
