"""What the controller's rules work with: who asks, and what comes of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.schema import Message
from oncelog.security.acl import CLUSTER_NAME, Operation, Resource


class Decision(NamedTuple):
    """Records for the log, and the answer that may be given when they are committed."""

    records: Sequence[Message]
    answer: Message


Deciding = Generator[None, None, Decision]
"""What takes longer the more a request names: it yields in between, for those who have other things to do. Nothing else
is decided meanwhile."""


class Requester(Protocol):
    """Whoever sent a request: a broker for itself, or a client whose request a broker passed on."""

    @property
    def api_version(self) -> int: ...

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool: ...

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError."""

    def take_mutations(self, count: int) -> None:
        """Count partitions that are about to be made or deleted. Raises KafkaError if a quota does not allow so
        many."""
