"""Schemas of Protobuf: the text of a .proto file, or its descriptor in base64 as Confluent's Python client sends it.

A text is compiled by protoc, which comes with grpcio-tools, in a process of its own: what a stranger has written can
neither stop this one nor print into it. A descriptor needs no compiler.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from oncelog.schemas.protobuf_compatibility import Files, unreadable
from oncelog.schemas.schema import InvalidSchema, Schema
from oncelog.schemas.wire_format import FIRST_MESSAGE, encode_indexes, split_indexes

COMPILE_TIMEOUT_S: Final = 30.0
ROOT: Final = "oncelog-schema.proto"
"""The name of the file while it is compiled; a schema has none of its own."""
_STANDARD: Final = "google/protobuf/"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./ +-]{0,200}\.proto")
"""protoc takes what begins with - for an option, and what begins with @ for a file of options."""


class ProtobufSchema:
    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        texts = {name: reference.text for name, reference in references.items()}
        self.file = file_descriptor(schema.text, tuple(texts.items()))
        self._others = {name: file_descriptor(text, tuple(texts.items()), name) for name, text in texts.items()}
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        try:
            for name in self.file.dependency:
                self._add(name, ())
            self._pool.Add(self.file)
            self._root = self._pool.FindFileByName(ROOT)
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidSchema(f"it is no usable descriptor of Protobuf: {error}") from error
        if not self.file.message_type:
            raise InvalidSchema("a schema of Protobuf needs a message")

    def _add(self, name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise InvalidSchema(f"{name} imports itself")
        if name in self._added:
            return
        file = _standard(name) if name.startswith(_STANDARD) else self._others.get(name)
        if file is None:
            raise InvalidSchema(f"{name} is imported, and is not among the references of the schema")
        for dependency in file.dependency:
            self._add(dependency, (*path, name))
        self._pool.Add(file)
        self._added.add(name)

    @property
    def canonical(self) -> str:
        return serialized(self.file)

    @property
    def files(self) -> Files:
        return Files(self.file, tuple(self._others.values()))

    def unreadable(self, writer: ProtobufSchema) -> list[str]:
        return unreadable(self.files, writer.files)

    def message(self, indexes: tuple[int, ...]) -> Descriptor:
        """Raises ValueError if there is no such message."""
        try:
            found: Descriptor = self._root.message_types_by_name[self.file.message_type[indexes[0]].name]
            for index in indexes[1:]:
                found = found.nested_types[index]
        except IndexError:
            raise ValueError(f"its schema has no message with the indexes {list(indexes)}") from None
        return found

    def encode(self, value: Any) -> bytes:
        """As the first message of the file."""
        message = message_factory.GetMessageClass(self.message(FIRST_MESSAGE))()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool)
        except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"does not fit its Protobuf schema: {error}") from error
        return encode_indexes(FIRST_MESSAGE) + bytes(message.SerializeToString())

    def decode(self, payload: bytes) -> Any:
        indexes, data = split_indexes(payload)
        message = message_factory.GetMessageClass(self.message(indexes))()
        try:
            message.ParseFromString(data)
            return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (DecodeError, json_format.SerializeToJsonError, TypeError) as error:
            raise ValueError(f"it is not of its Protobuf schema: {error}") from error


def serialized(file: descriptor_pb2.FileDescriptorProto) -> str:
    """The descriptor in base64, without the name that it had while it was compiled."""
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("name")
    copy.ClearField("source_code_info")
    for message in copy.message_type:
        _forget_default_names(message)
    return base64.b64encode(copy.SerializeToString(deterministic=True)).decode()


def _forget_default_names(message: descriptor_pb2.DescriptorProto) -> None:
    """protoc writes down the JSON name of each field, and leaves it out in what it generates for Python."""
    for field in (*message.field, *message.extension):
        first, *rest = field.name.split("_")
        if field.json_name == first + "".join(part[:1].upper() + part[1:] for part in rest):
            field.ClearField("json_name")
    for nested in message.nested_type:
        _forget_default_names(nested)


@functools.lru_cache(maxsize=256)
def file_descriptor(
    text: str, others: tuple[tuple[str, str], ...], name: str = ROOT
) -> descriptor_pb2.FileDescriptorProto:
    """Raises InvalidSchema."""
    found = _from_base64(text)
    if found is None:
        found = _compile(text, dict(others), name)
    found.name = name
    return found


def _from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file


@functools.lru_cache(maxsize=64)
def _standard(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A file that comes with Protobuf, such as google/protobuf/timestamp.proto."""
    stem = name.removeprefix(_STANDARD).removesuffix(".proto")
    if not stem.isidentifier():
        return None
    file = descriptor_pb2.FileDescriptorProto()
    try:
        importlib.import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.CopyToProto(file)
    except ImportError:
        return None
    return file


def _compile(text: str, others: Mapping[str, str], name: str) -> descriptor_pb2.FileDescriptorProto:
    with tempfile.TemporaryDirectory(prefix="oncelog-proto-") as folder:
        try:
            inputs = _lay_down(Path(folder), {**others, name: text})
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise InvalidSchema(f"one of its files has the name of a folder of others: {error.filename}") from None
        output = Path(folder) / "compiled.set"
        command = [sys.executable, "-m", "grpc_tools.protoc", *inputs, f"--descriptor_set_out={output}", name]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise InvalidSchema(f"protoc had not compiled it after {COMPILE_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0 or not output.exists():
            raise InvalidSchema(_problem(done.stderr.decode(errors="replace"), folder, name))
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    return files.file[0]


def _lay_down(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Files for protoc, and the options by which it finds them."""
    compiled = descriptor_pb2.FileDescriptorSet()
    for name, text in texts.items():
        path = folder / name
        if not _FILE_NAME.fullmatch(name) or not path.resolve().is_relative_to(folder.resolve()):
            raise InvalidSchema(f"{name!r} is no name of a .proto file")
        file = _from_base64(text)
        if file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        else:
            file.name = name
            compiled.file.append(file)
    if not compiled.file:
        return [f"-I{folder}"]
    given = folder / "given.set"
    given.write_bytes(compiled.SerializeToString())
    return [f"-I{folder}", f"--descriptor_set_in={given}"]


def _problem(output: str, folder: str, name: str) -> str:
    if "No module named" in output:
        return "compiling .proto files needs grpcio-tools: pip install 'oncelog[registry]'"
    lines = [line.replace(f"{folder}/", "").removeprefix(f"{name}:") for line in output.splitlines() if line.strip()]
    return f"it does not compile: {'; '.join(lines[:5])}"
