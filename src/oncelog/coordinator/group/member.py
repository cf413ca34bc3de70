"""One member of a classic group."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from oncelog.core.dataclass import dataclass
from oncelog.core.invariant import InvariantError

if TYPE_CHECKING:
    from oncelog.protocol.messages.group_metadata_log import MemberMetadata
    from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

MEMBER_BYTES: Final = 4_096
"""Memory of a member beside what it tells: with its timers, and with a request that waits and its connection, which may
be gone."""
EXPECTED_BYTES: Final = 500
"""Memory of a member that was given an id, beside that."""


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    """In the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Its first JoinGroup is still parked: it has no id yet, so it cannot send heartbeats."""

    @classmethod
    def loaded(cls, metadata: MemberMetadata, protocol_name: str | None) -> Member:
        has_rebalance_timeout = metadata.rebalance_timeout != -1
        return cls(
            member_id=metadata.member_id,
            group_instance_id=metadata.group_instance_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            rebalance_timeout_ms=metadata.rebalance_timeout if has_rebalance_timeout else metadata.session_timeout,
            session_timeout_ms=metadata.session_timeout,
            protocols={protocol_name or "": bytes(metadata.subscription)},
            assignment=bytes(metadata.assignment),
        )

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str) -> bytes:
        return self.protocols[protocol_name]

    @property
    def held_bytes(self) -> int:
        """Without the assignment: all of a group have to fit into a record."""
        return _held_bytes(self.protocols.items(), self.client_id, self.group_instance_id)

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Whether the member would say the same as it did last time, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())

    def vote(self, candidates: Collection[str]) -> str:
        for name in self.protocols:
            if name in candidates:
                return name
        raise InvariantError(f"member {self.member_id} supports none of {sorted(candidates)}")

    def durable(self, protocol_name: str, assignment: bytes) -> MemberMetadata:
        from oncelog.protocol.messages.group_metadata_log import MemberMetadata  # a start has no members

        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


def held_bytes_of(request: JoinGroupRequest, client_id: str) -> int:
    """Of the member that it would make, at most."""
    protocols = ((protocol.name, protocol.metadata) for protocol in request.protocols)
    return _held_bytes(protocols, client_id, request.group_instance_id)


def _held_bytes(protocols: Iterable[tuple[str, bytes]], client_id: str, instance_id: str | None) -> int:
    """Its id begins with one of the two texts."""
    told_bytes = sum(len(name) + len(metadata) for name, metadata in protocols)
    return MEMBER_BYTES + told_bytes + 2 * (getsizeof(client_id) + getsizeof(instance_id))


def unique_protocols(protocols: Iterable[JoinGroupRequestProtocol]) -> dict[str, bytes]:
    """The protocols by name. If a name is given twice, the first one counts."""
    unique: dict[str, bytes] = {}
    for protocol in protocols:
        unique.setdefault(protocol.name, bytes(protocol.metadata))
    return unique
