"""Encoders and decoders of messages, generated as Python source when a class is first used in a version."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from oncelog.protocol.decoder import make_decoder
from oncelog.protocol.encoder import make_encoder
from oncelog.protocol.primitives import MalformedRequest, Readable
from oncelog.protocol.schema import Message, check_version

M = TypeVar("M", bound=Message)

_INT16: Final = struct.Struct(">h")


def decoder(cls: type[M], version: int) -> Callable[[Readable, int], tuple[M, int]]:
    """A function of data and position that returns the message and the position after it, or MalformedRequest."""
    decode = cls.DECODERS.get(version)
    if decode is None:
        check_version(cls, version)
        decode = cls.DECODERS[version] = make_decoder(cls, version)
    return decode


def encoder(cls: type[M], version: int) -> Callable[[M], list[Readable]]:
    """A function of a message that returns its buffers; only record data is in buffers of its own."""
    encode = cls.ENCODERS.get(version)
    if encode is None:
        check_version(cls, version)
        encode = cls.ENCODERS[version] = make_encoder(cls, version)
    return encode


def decode(cls: type[M], version: int, data: Readable, position: int = 0) -> M:
    """Bytes after the message are ignored: clients exist that leave some."""
    return decoder(cls, version)(data, position)[0]


def encode(message: Message, version: int) -> list[Readable]:
    return encoder(type(message), version)(message)


def encode_bytes(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


def encode_versioned(message: Message, version: int) -> bytes:
    """As records of the internal topics and of the consumer protocol are: the version as int16, then the message."""
    return _INT16.pack(version) + encode_bytes(message, version)


def decode_versioned(cls: type[M], data: Readable) -> M:
    version = read_version(data)
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise MalformedRequest(f"{cls.__name__} has versions {first}-{last}, the data says {version}")
    return decode(cls, version, data, _INT16.size)


def read_version(data: Readable) -> int:
    """The int16 a versioned value starts with; for keys of internal topics it is the type of the record."""
    if len(data) < _INT16.size:
        raise MalformedRequest(f"{len(data)} bytes are too few for a version")
    version: int = _INT16.unpack_from(data)[0]
    return version
