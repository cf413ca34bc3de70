"""The APIs by key: their versions, and how to get from bytes to a request and from a response to bytes.

A message module is imported when its API is first used, so starting a broker does not load all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.compiler import decoder, encoder
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import NEVER, Message


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


KAFKA_VERSIONS: Final[dict[ApiKey, tuple[int, int]]] = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
"""What Kafka 4.3 advertises, both inclusive. Produce 0-2 are only advertised (librdkafka looks for them), never served;
InitProducerId 6 has a schema but is not yet stable."""

_FIRST_FLEXIBLE: Final[dict[ApiKey, int]] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_QUORUM: 0,
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
}
"""Repeated here from the message classes, since a header must be read before a class is needed."""


class MessagePair(NamedTuple):
    request: type[Message]
    response: type[Message]


_pairs: dict[int, MessagePair] = {}


def messages(key: int) -> MessagePair:
    """The classes of an API. Raises UNSUPPORTED_VERSION for a key without any."""
    pair = _pairs.get(key)
    if pair is None:
        try:
            name = ApiKey(key).name
        except ValueError:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"no API has the key {key}") from None
        module = import_module(f"oncelog.protocol.messages.{name.lower()}")
        stem = "".join(word.capitalize() for word in name.split("_"))
        pair = MessagePair(getattr(module, f"{stem}Request"), getattr(module, f"{stem}Response"))
        _pairs[key] = pair
    return pair


def request_header_version(key: int, version: int) -> int:
    """2, with tagged fields, for flexible versions; 1 before."""
    return 2 if version >= _first_flexible(key) else 1


def response_header_version(key: int, version: int) -> int:
    """1, with tagged fields, for flexible versions; 0 before, and always for ApiVersions."""
    return 1 if version >= _first_flexible(key) and key != ApiKey.API_VERSIONS else 0


def _first_flexible(key: int) -> int:
    return _FIRST_FLEXIBLE.get(cast(ApiKey, key), NEVER)


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


def _decoder(cls: type[Message], version: int) -> Callable[..., Any]:
    _check_version(cls, version)
    return decoder(cls, version)


def _encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    _check_version(cls, version)
    return encoder(cls, version)


def _check_version(cls: type[Message], version: int) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} is known in versions {first}-{last}, not in {version}"
        )
