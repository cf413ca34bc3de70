"""Who may do what: the operations and resources of Kafka's ACLs, and the question that every handler asks first.

A handler asks `RequestContext.may` or `require` before it looks at anything else, so that a client learns nothing of
what it may not see. An `Authorizer` answers. As long as there are no ACLs, it is one that allows all that clients do.
ClusterAction is what brokers send each other, such as the markers of a transaction: a client that may do that could
end transactions of others, so it needs `oncelog.cluster.action.enable`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from oncelog.core.errors import ErrorCode

ANONYMOUS: Final = "User:ANONYMOUS"
CLUSTER_NAME: Final = "kafka-cluster"

NOT_ASKED: Final = -(2**31)
"""The client did not want to know which operations it may use."""


class Operation(IntEnum):
    """The number is that of Kafka's AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """The number is that of Kafka's ResourceType."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


REFUSALS: Final[dict[Resource, ErrorCode]] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

OPERATIONS: Final[dict[Resource, tuple[Operation, ...]]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""Those that a client can be told of: `authorized_operations` in an answer is a set of them, bit n for operation n."""


class Authorizer(Protocol):
    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool: ...

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there may be a resource of the kind, whatever its name, on which the operation is allowed."""


class AllowClients:
    """Without ACLs: everybody may do what is meant for clients."""

    def __init__(self, *, cluster_action: bool = False) -> None:
        self._cluster_action = cluster_action

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        return self.allows_any(principal, host, operation, resource)

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.CLUSTER_ACTION or self._cluster_action
