"""What a handler knows of a request beside its body, and the answer that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from oncelog.core.dataclass import dataclass
from oncelog.core.errors import KafkaError
from oncelog.protocol.api_keys import ApiKey
from oncelog.server import audit
from oncelog.server.authorization import (
    ANONYMOUS,
    CLUSTER_NAME,
    OPERATIONS,
    REFUSALS,
    AllowClients,
    Authorizer,
    Operation,
    Resource,
)

if TYPE_CHECKING:
    from oncelog.server.quotas import Quotas


def hold_nothing(_: int) -> None:
    """The default, for a peer without a connection."""


def end_nothing() -> None:
    """The default, for a peer for whom nothing waits."""


@dataclass(slots=True)
class Peer:
    """A connection, as far as an answer can depend on it: its two ends, and who is at the other one."""

    client_host: str
    local_host: str
    """The address of ours that the client reached: what to tell it to come back to, when we listen on all."""
    connected: bool = True
    """Whether anybody is there to be answered."""
    principal: str = ANONYMOUS
    listener: str = "PLAINTEXT"
    """The name of the one that the client came by."""
    request_bytes: int = 0
    """Of the request that is being served."""
    later_s: float = 0.0
    """Time that was spent on it in later turns of the loop."""
    throttle_ms: int = 0
    """How long nothing is to be read from the connection, after the answer that is sent next."""
    is_known: bool = True
    """Whether the client may go on: on a listener with SASL, once it has logged in."""
    add_work_bytes: Callable[[int], None] = hold_nothing
    """Counts memory that a request and its answer take as objects, until the answer is sent."""
    on_gone: Callable[[], None] = end_nothing
    """Ends what waits for the sake of its answer, when nobody is there any more."""


class HangUp(Enum):
    """The answer to a failed request that has no response, such as Produce with acks=0: the connection is closed, which
    is all that can tell the client."""

    HANG_UP = auto()


HANG_UP: Final = HangUp.HANG_UP


@dataclass(slots=True)
class RequestContext:
    api_version: int
    client_id: str
    peer: Peer
    authorizer: Authorizer = field(default_factory=AllowClients)
    api_key: int | None = None
    throttle_ms: int = 0
    """What quotas ask of the client, as far as the request is served."""
    is_of_broker: bool = False
    """Whether it is a request that keeps the cluster going: quotas are not for it."""
    refused: set[tuple[Operation, Resource, str]] | None = None
    """What the audit log was told of."""
    mutation_quotas: Quotas | None = None
    """Where a controller measures what its clients change."""

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """For what is left out of an answer, or has another way to be allowed. `permits` is for what is refused."""
        return self.authorizer.allows(self.peer.principal, self.peer.client_host, operation, resource, name)

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        return self.authorizer.allows_any(self.peer.principal, self.peer.client_host, operation, resource)

    def permits(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        if not self.authorizer.restricts_clients and operation is not Operation.CLUSTER_ACTION:
            return True
        peer = self.peer
        if self.authorizer.allows(peer.principal, peer.client_host, operation, resource, name):
            return True
        if self.refused is not None and (operation, resource, name) in self.refused:
            return False
        # Once, however many partitions of it are asked for. Most requests need no set of their own.
        self.refused = self.refused or set()
        self.refused.add((operation, resource, name))
        self._tell("refused", operation=operation.name, resource=resource.name, name=name)
        return False

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raises the refusal of the kind of resource. It says nothing about whether the resource exists."""
        if not self.authorizer.restricts_clients and operation is not Operation.CLUSTER_ACTION:
            return  # without an authorizer, one call for each partition is all that this costs
        if not self.permits(operation, resource, name):
            raise KafkaError(
                REFUSALS[resource], f"{self.peer.principal} has no {operation.name} on {resource.name} {name!r}"
            )

    def take_mutations(self, count: int) -> None:
        """Count partitions that are made or deleted. Raises THROTTLING_QUOTA_EXCEEDED."""
        if self.mutation_quotas is not None:
            self.mutation_quotas.take_mutations(self, count)

    def tell_change(self, resource: str, name: str, detail: str) -> None:
        """Tell the audit log about a change that was made."""
        self._tell("changed", resource=resource, name=name, detail=detail)

    def _tell(self, event: str, **fields: str) -> None:
        peer = self.peer
        who = {"principal": peer.principal, "host": peer.client_host, "listener": peer.listener}
        api = {} if self.api_key is None else {"api": ApiKey(self.api_key).stem}
        audit.tell(event, peer.principal, {**who, "client_id": self.client_id, **api, **fields})

    def operations_on_cluster(self) -> int:
        """A bit for each operation that the client may do on the cluster; none if it may not describe it."""
        return self.operations_on(Resource.CLUSTER) if self.may(Operation.DESCRIBE, Resource.CLUSTER) else 0

    def operations_on(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """The set of operations for `authorized_operations`."""
        return sum(1 << operation for operation in OPERATIONS[resource] if self.may(operation, resource, name))
