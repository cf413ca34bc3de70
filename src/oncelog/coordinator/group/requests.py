"""What the group coordinator is asked and what it answers, free of wire versions.

A handler maps wire messages to these and back. Where an answer depends on what the client understands, the request
says so in a flag instead of carrying a version number. Every answer has `but(error, reason)`: the same answer
when the records that it rests on were not committed. An answer that was an error anyway stays as it is.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NULL_UUID, TopicPartition

NO_GENERATION: Final = -1
UNKNOWN_MEMBER: Final = ""
NO_RETENTION: Final = -1
NO_OFFSET_COMMITTED: Final = -1
GROUP_TYPE_CLASSIC: Final = "classic"


# --- membership ------------------------------------------------------------------------------------------------


class JoinProtocol(NamedTuple):
    """One way of dividing the work that a member knows, best first, with what it has to say under it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    rebalance_timeout_ms: int = -1
    """-1 (JoinGroup v0 has no such field) means the session time-out."""
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str | None = None
    requires_known_member_id: bool = True
    """JoinGroup v4 and later (KIP-394): a dynamic member is first sent away with an id to come back with."""
    supports_skipping_assignment: bool = True
    """JoinGroup v9 and later (KIP-814): a returning static leader can be told not to assign again."""


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    error: ErrorCode = ErrorCode.NONE
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = UNKNOWN_MEMBER
    members: tuple[JoinedMember, ...] = ()
    """All members for the leader, none for the others."""

    def but(self, error: ErrorCode, reason: str) -> JoinResult:
        return self if self.error else JoinResult(error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)
    """By member id; only the leader's are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def but(self, error: ErrorCode, reason: str) -> SyncResult:
        return self if self.error else SyncResult(error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    error: ErrorCode = ErrorCode.NONE

    def but(self, error: ErrorCode, reason: str) -> HeartbeatResult:
        return self if self.error else HeartbeatResult(error=error)


class LeavingMember(NamedTuple):
    """An operator may remove a static member by its instance id alone: then the member id is empty."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()

    def but(self, error: ErrorCode, reason: str) -> LeaveResult:
        return self if self.error else LeaveResult(error=error)


# --- offsets -----------------------------------------------------------------------------------------------------


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: uuid.UUID = NULL_UUID
    """NULL_UUID when the client named the topic and the broker does not know its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    retention_ms: int = NO_RETENTION
    """OffsetCommit v2 to v4 may ask for a retention of its own."""
    understands_group_id_not_found: bool = True
    """OffsetCommit v9 and later; older clients are told ILLEGAL_GENERATION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    understands_group_id_not_found: bool = False
    """TxnOffsetCommit v6 and later (KIP-1319)."""


class PartitionError(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResult:
    """One entry per offset of the request, in its order."""

    partitions: tuple[PartitionError, ...]

    def but(self, error: ErrorCode, reason: str) -> OffsetCommitResult:
        return OffsetCommitResult(
            partitions=tuple(entry if entry.error else entry._replace(error=error) for entry in self.partitions)
        )


class PartitionToFetch(NamedTuple):
    topic: str
    partition: int
    topic_id: uuid.UUID = NULL_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """One group of an OffsetFetch."""

    group_id: str
    partitions: tuple[PartitionToFetch, ...] | None
    """None asks for everything the group has committed."""
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    topic: str
    partition: int
    offset: int = NO_OFFSET_COMMITTED
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResult:
    group_id: str
    offsets: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResult:
    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[PartitionError, ...] = ()

    def but(self, error: ErrorCode, reason: str) -> OffsetDeleteResult:
        return self if self.error else OffsetDeleteResult(error=error)


# --- administration ------------------------------------------------------------------------------------------------


class DeletedGroup(NamedTuple):
    group_id: str
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResult:
    groups: tuple[DeletedGroup, ...]

    def but(self, error: ErrorCode, reason: str) -> DeleteGroupsResult:
        return replace(
            self, groups=tuple(entry if entry.error else entry._replace(error=error) for entry in self.groups)
        )


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """An unknown group is Dead with GROUP_ID_NOT_FOUND; DescribeGroups before v6 leaves the error out."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str = GROUP_TYPE_CLASSIC
