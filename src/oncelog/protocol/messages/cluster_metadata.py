"""Records of `__cluster_metadata`, the log of Kafka's own controllers, and its control records.

A record is: uvarint 1 (the frame), uvarint type, uvarint version, then the message. Control records of that log have
the type in their key and start with their own version.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from oncelog.protocol.compiler import decode
from oncelog.protocol.primitives import MalformedRequest, read_uvarint
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, int64, string, struct, uint16, uuid

_FRAME_VERSION: Final = 1


class Endpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterBrokerRecord(Message, versions=(0, 4), flexible=0):
    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(since=2)
    incarnation_id: UUID = uuid()
    broker_epoch: int = int64()
    end_points: list[Endpoint] = array(Endpoint)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable=True)
    fenced: bool = boolean()
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


class RemoveTopicRecord(Message, versions=(0, 0), flexible=0):
    topic_id: UUID = uuid()


class FeatureLevelRecord(Message, versions=(0, 0), flexible=0):
    name: str = string()
    feature_level: int = int16()


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


class NoOpRecord(Message, versions=(0, 0), flexible=0):
    pass


class BeginTransactionRecord(Message, versions=(0, 0), flexible=0):
    name: str | None = string(nullable=True, default=None, tag=0)


class EndTransactionRecord(Message, versions=(0, 0), flexible=0):
    pass


class AbortTransactionRecord(Message, versions=(0, 0), flexible=0):
    reason: str | None = string(nullable=True, default=None, tag=0)


class RegisterControllerRecord(Message, versions=(0, 0), flexible=0):
    controller_id: int = int32()
    incarnation_id: UUID = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[Endpoint] = array(Endpoint)
    features: list[Feature] = array(Feature)


class ClearElrRecord(Message, versions=(0, 0), flexible=0):
    topic_name: str = string()


RECORD_TYPES: Final[dict[int, tuple[str, type[Message]]]] = {
    0: ("REGISTER_BROKER_RECORD", RegisterBrokerRecord),
    1: ("UNREGISTER_BROKER_RECORD", UnregisterBrokerRecord),
    2: ("TOPIC_RECORD", TopicRecord),
    3: ("PARTITION_RECORD", PartitionRecord),
    4: ("CONFIG_RECORD", ConfigRecord),
    5: ("PARTITION_CHANGE_RECORD", PartitionChangeRecord),
    9: ("REMOVE_TOPIC_RECORD", RemoveTopicRecord),
    12: ("FEATURE_LEVEL_RECORD", FeatureLevelRecord),
    15: ("PRODUCER_IDS_RECORD", ProducerIdsRecord),
    17: ("BROKER_REGISTRATION_CHANGE_RECORD", BrokerRegistrationChangeRecord),
    20: ("NO_OP_RECORD", NoOpRecord),
    23: ("BEGIN_TRANSACTION_RECORD", BeginTransactionRecord),
    24: ("END_TRANSACTION_RECORD", EndTransactionRecord),
    25: ("ABORT_TRANSACTION_RECORD", AbortTransactionRecord),
    27: ("REGISTER_CONTROLLER_RECORD", RegisterControllerRecord),
    28: ("CLEAR_ELR_RECORD", ClearElrRecord),
}


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


class MetadataRecord(NamedTuple):
    """`message` is None if the type or version is not known here; it would begin at `position`."""

    type: str
    version: int
    message: Message | None
    position: int


def decode_metadata_record(value: bytes) -> MetadataRecord:
    """Raises MalformedRequest or IndexError."""
    frame, position = read_uvarint(value, 0)
    if frame != _FRAME_VERSION:
        raise MalformedRequest(f"frame version {frame} is unknown, expected {_FRAME_VERSION}")
    number, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    name, cls = RECORD_TYPES.get(number, (f"RECORD_TYPE_{number}", None))
    known = cls is not None and version <= cls.VERSIONS[1]
    return MetadataRecord(name, version, decode(cls, version, value, position) if cls and known else None, position)
