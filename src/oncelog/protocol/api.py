"""From bytes to a request or response by its API key, and back.

A message module is imported when its API is first used, so starting a broker does not load all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.api_keys import NEVER, ApiKey
from oncelog.protocol.compiler import decoder, encoder
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message

_FIRST_FLEXIBLE: Final[dict[int, int]] = {key: key.flexible for key in ApiKey}

Decode = Callable[..., tuple[Any, int]]
Encode = Callable[[Any], list[Readable]]


class MessagePair(NamedTuple):
    request: type[Message]
    response: type[Message]


_pairs: dict[int, MessagePair] = {}


def messages(key: int) -> MessagePair:
    """The classes of an API. Raises UNSUPPORTED_VERSION for a key without any."""
    pair = _pairs.get(key)
    if pair is None:
        try:
            api = ApiKey(key)
        except ValueError:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"no API has the key {key}") from None
        module = import_module(f"oncelog.protocol.messages.{api.name.lower()}")
        pair = MessagePair(getattr(module, f"{api.stem}Request"), getattr(module, f"{api.stem}Response"))
        _pairs[key] = pair
    return pair


def request_header_version(key: int, version: int) -> int:
    """2, with tagged fields, for flexible versions; 1 before."""
    return 2 if version >= _FIRST_FLEXIBLE.get(key, NEVER) else 1


def response_header_version(key: int, version: int) -> int:
    """1, with tagged fields, for flexible versions; 0 before, and always for ApiVersions."""
    return 1 if version >= _FIRST_FLEXIBLE.get(key, NEVER) and key != ApiKey.API_VERSIONS else 0


def request_decoder(key: int, version: int) -> Decode:
    """Raises KafkaError UNSUPPORTED_VERSION."""
    return _decoder(messages(key).request, version)


def response_encoder(key: int, version: int) -> Encode:
    return _encoder(messages(key).response, version)


def decode_request(key: int, version: int, body: Readable, position: int = 0) -> Message:
    """Raises MalformedRequest, or KafkaError UNSUPPORTED_VERSION."""
    pair = _pairs.get(key) or messages(key)
    decode = pair.request.DECODERS.get(version) or _decoder(pair.request, version)
    message: Message = decode(body, position)[0]
    return message


def decode_response(key: int, version: int, body: Readable, position: int = 0) -> Message:
    pair = _pairs.get(key) or messages(key)
    decode = pair.response.DECODERS.get(version) or _decoder(pair.response, version)
    message: Message = decode(body, position)[0]
    return message


def encode_request(key: int, version: int, message: Message) -> list[Readable]:
    """The buffers of the body. Those of record data are the message's own, not copies."""
    pair = _pairs.get(key) or messages(key)
    encode = pair.request.ENCODERS.get(version) or _encoder(pair.request, version)
    buffers: list[Readable] = encode(message)
    return buffers


def encode_response(key: int, version: int, message: Message) -> list[Readable]:
    pair = _pairs.get(key) or messages(key)
    encode = pair.response.ENCODERS.get(version) or _encoder(pair.response, version)
    buffers: list[Readable] = encode(message)
    return buffers


def _decoder(cls: type[Message], version: int) -> Decode:
    _check_version(cls, version)
    return decoder(cls, version)


def _encoder(cls: type[Message], version: int) -> Encode:
    _check_version(cls, version)
    return encoder(cls, version)


def _check_version(cls: type[Message], version: int) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} is known in versions {first}-{last}, not in {version}"
        )
