"""Records of `__cluster_metadata`, the log of Kafka's own controllers: all types and versions of Kafka 4.3.

A record has no key; its value is: uvarint 1 (the frame), uvarint type, uvarint version, then the message. Control
records of that log have their type in the key (int16 version 0, int16 type), and their value starts with its version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final
from uuid import UUID

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.compiler import decode, decoder, encode_bytes, read_version
from oncelog.protocol.messages.broker_registration import Feature, Listener
from oncelog.protocol.primitives import MalformedRequest, Readable, read_uvarint, uvarint
from oncelog.protocol.schema import (
    Message,
    array,
    boolean,
    byte_string,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
    uuid,
)

_FRAME_VERSION: Final = 1
_ONE_BYTE_END: Final = 0x80
"""Of the numbers whose uvarint is one byte: all that there are."""
_CONTROL_KEY: Final = Struct(">hh")
_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")


class RegisterBrokerRecord(Message, versions=(0, 4), flexible=0):
    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(since=2)
    incarnation_id: UUID = uuid()
    broker_epoch: int = int64()
    end_points: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable=True)
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean(since=1)
    log_dirs: list[UUID] = array(uuid, since=3, tag=0)
    cordoned_log_dirs: list[UUID] | None = array(uuid, since=4, nullable=True, default=None, tag=1)


class UnregisterBrokerRecord(Message, versions=(0, 0), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64()


class TopicRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    topic_id: UUID = uuid()


class PartitionRecord(Message, versions=(0, 2), flexible=0):
    partition_id: int = int32(default=-1)
    topic_id: UUID = uuid()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[UUID] = array(uuid, since=1)
    eligible_leader_replicas: list[int] | None = array(int32, since=2, nullable=True, default=None, tag=1)
    last_known_elr: list[int] | None = array(int32, since=2, nullable=True, default=None, tag=2)


class ConfigRecord(Message, versions=(0, 0), flexible=0):
    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable=True)


class PartitionChangeRecord(Message, versions=(0, 2), flexible=0):
    partition_id: int = int32(default=-1)
    topic_id: UUID = uuid()
    isr: list[int] | None = array(int32, nullable=True, default=None, tag=0)
    leader: int = int32(default=-2, tag=1)
    replicas: list[int] | None = array(int32, nullable=True, default=None, tag=2)
    removing_replicas: list[int] | None = array(int32, nullable=True, default=None, tag=3)
    adding_replicas: list[int] | None = array(int32, nullable=True, default=None, tag=4)
    leader_recovery_state: int = int8(default=-1, tag=5)
    directories: list[UUID] | None = array(uuid, since=1, nullable=True, default=None, tag=8)
    eligible_leader_replicas: list[int] | None = array(int32, since=2, nullable=True, default=None, tag=6)
    last_known_elr: list[int] | None = array(int32, since=2, nullable=True, default=None, tag=7)


class FenceBrokerRecord(Message, versions=(0, 0), flexible=0):
    id: int = int32()
    epoch: int = int64()


class UnfenceBrokerRecord(Message, versions=(0, 0), flexible=0):
    id: int = int32()
    epoch: int = int64()


class RemoveTopicRecord(Message, versions=(0, 0), flexible=0):
    topic_id: UUID = uuid()


class DelegationTokenRecord(Message, versions=(0, 0), flexible=0):
    owner: str = string()
    requester: str = string()
    renewers: list[str] = array(string)
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class UserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    mechanism: int = int8()
    salt: bytes = byte_string()
    stored_key: bytes = byte_string()
    server_key: bytes = byte_string()
    iterations: int = int32()


class FeatureLevelRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    feature_level: int = int16()


class QuotaEntity(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class ClientQuotaRecord(Message, versions=(0, 0), flexible=0):
    entity: list[QuotaEntity] = array(QuotaEntity)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class ProducerIdsRecord(Message, versions=(0, 0), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class BrokerRegistrationChangeRecord(Message, versions=(0, 3), flexible=0):
    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8(since=1, tag=1)
    log_dirs: list[UUID] = array(uuid, since=2, tag=2)
    cordoned_log_dirs: list[UUID] | None = array(uuid, since=3, nullable=True, default=None, tag=3)


class AccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    id: UUID = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class RemoveAccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    id: UUID = uuid()


class NoOpRecord(Message, versions=(0, 0), flexible=0):
    pass


class ZkMigrationStateRecord(Message, versions=(0, 0), flexible=0):
    zk_migration_state: int = int8()


class RemoveUserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    mechanism: int = int8()


class BeginTransactionRecord(Message, versions=(0, 0), flexible=0):
    name: str | None = string(nullable=True, default=None, tag=0)


class EndTransactionRecord(Message, versions=(0, 0), flexible=0):
    pass


class AbortTransactionRecord(Message, versions=(0, 0), flexible=0):
    reason: str | None = string(nullable=True, default=None, tag=0)


class RemoveDelegationTokenRecord(Message, versions=(0, 0), flexible=0):
    token_id: str = string()


class RegisterControllerRecord(Message, versions=(0, 0), flexible=0):
    controller_id: int = int32()
    incarnation_id: UUID = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)


class ClearElrRecord(Message, versions=(0, 0), flexible=0):
    topic_name: str = string()


RECORD_TYPES: Final[dict[int, type[Message]]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
_TYPE_NUMBERS: Final = {cls: number for number, cls in RECORD_TYPES.items()}


class Voter(Message):
    voter_id: int = int32()
    voter_directory_id: UUID = uuid(since=1)


class LeaderChangeMessage(Message, versions=(0, 1), flexible=0):
    version: int = int16()
    leader_id: int = int32()
    voters: list[Voter] = array(Voter)
    granting_voters: list[Voter] = array(Voter)


class SnapshotHeaderRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    last_contained_log_timestamp: int = int64()


class SnapshotFooterRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()


class KRaftVersionRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    k_raft_version: int = int16()


class VoterEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class VersionRange(Message):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class VotersVoter(Message):
    voter_id: int = int32()
    voter_directory_id: UUID = uuid()
    endpoints: list[VoterEndpoint] = array(VoterEndpoint)
    k_raft_version_feature: VersionRange = struct(VersionRange)


class VotersRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    voters: list[VotersVoter] = array(VotersVoter)


CONTROL_TYPES: Final[dict[int, tuple[str, type[Message]]]] = {
    2: ("LeaderChange", LeaderChangeMessage),
    3: ("SnapshotHeader", SnapshotHeaderRecord),
    4: ("SnapshotFooter", SnapshotFooterRecord),
    5: ("KRaftVersion", KRaftVersionRecord),
    6: ("KRaftVoters", VotersRecord),
}


_CONTROL_NUMBERS: Final = {cls: number for number, (_, cls) in CONTROL_TYPES.items()}


def decode_control_record(control_type: int, value: Readable) -> Message | None:
    """None if the type is unknown. Higher versions only add fields: their prefix is read. Raises MalformedRequest."""
    name, cls = CONTROL_TYPES.get(control_type, ("", None))
    if cls is None:
        return None
    version = read_version(value)
    if version < 0:
        raise MalformedRequest(f"a control record {name} has version {version}")
    return decode(cls, min(version, cls.VERSIONS[1]), value)


def control_key(message: Message) -> bytes:
    """The key of a control record, which tells its type."""
    return _CONTROL_KEY.pack(0, _CONTROL_NUMBERS[type(message)])


class MetadataRecord(NamedTuple):
    """`message` is None if the type or version is not known here; it would begin at `position`."""

    type: int
    version: int
    message: Message | None
    position: int

    @property
    def type_name(self) -> str:
        """As Kafka's tools show it: REGISTER_BROKER_RECORD."""
        cls = RECORD_TYPES.get(self.type)
        return f"RECORD_TYPE_{self.type}" if cls is None else _WORD_START.sub("_", cls.__name__).upper()

    def known(self) -> Message:
        """The message. Raises UNSUPPORTED_VERSION if this program does not know it, and so not what it changes."""
        if self.message is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"metadata record of type {self.type} ({self.type_name}) in version {self.version} is not known here: "
                "it was written by a newer version of Kafka than 4.3",
            )
        return self.message


def record_types(*classes: type[Message]) -> frozenset[int]:
    """Their numbers, which are the second byte of a record."""
    return frozenset(_TYPE_NUMBERS[cls] for cls in classes)


def record_beginnings(types: Iterable[int]) -> list[bytes]:
    """The first three bytes of records of these types, in the versions that are known."""
    return [
        bytes([_FRAME_VERSION, number, version])
        for number in types
        for version in range(RECORD_TYPES[number].VERSIONS[1] + 1)
    ]


def decode_metadata_record(value: Readable) -> MetadataRecord:
    """Raises MalformedRequest or IndexError."""
    frame, number, version = value[0], value[1], value[2]
    position = 3
    if (frame | number | version) >= _ONE_BYTE_END:
        frame, position = read_uvarint(value, 0)
        number, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    if frame != _FRAME_VERSION:
        raise MalformedRequest(f"frame version {frame} is unknown, expected {_FRAME_VERSION}")
    cls = RECORD_TYPES.get(number)
    if cls is None or version > cls.VERSIONS[1]:
        return MetadataRecord(number, version, None, position)
    return MetadataRecord(number, version, decoder(cls, version)(value, position)[0], position)


def encode_metadata_record(message: Message, version: int) -> bytes:
    return _beginning(type(message), version) + encode_bytes(message, version)


@lru_cache
def _beginning(cls: type[Message], version: int) -> bytes:
    number = _TYPE_NUMBERS.get(cls)
    invariant(number is not None, "%s is no metadata record", cls.__name__)
    return bytes([_FRAME_VERSION]) + uvarint(number or 0) + uvarint(version)
