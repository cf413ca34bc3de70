"""Who may do what: the operations and resources of Kafka's ACLs, and the question that every handler asks first.

A handler asks `RequestContext.may` or `require` before it looks at anything else, so that a client learns nothing of
what it may not see. An `Authorizer` answers: `security.acl.AclAuthorizer` with `authorizer.class.name`, else one that
allows all that clients do. There ClusterAction, which is what brokers send each other, such as the markers of a
transaction, needs `oncelog.cluster.action.enable`: a client that may do that could end transactions of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.config import ConfigError, Settings
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.security.acl import CLUSTER_NAME, Acl, AclAuthorizer, Operation, Resource, parse_super_users

__all__ = ["CLUSTER_NAME", "AllowClients", "Authorizer", "Operation", "Resource"]

ANONYMOUS: Final = "User:ANONYMOUS"

NOT_ASKED: Final = -(2**31)
"""The client did not want to know which operations it may use."""


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
    restricts_clients: bool
    """Else it need not be asked about anything but ClusterAction."""

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool: ...

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there may be a resource of the kind, whatever its name, on which the operation is allowed."""


class AllowClients:
    """Without ACLs: everybody may do what is meant for clients."""

    restricts_clients = False

    def __init__(self, *, cluster_action: bool = False) -> None:
        self._cluster_action = cluster_action

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        return operation is not Operation.CLUSTER_ACTION or self._cluster_action

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.CLUSTER_ACTION or self._cluster_action


def acls_are_disabled() -> KafkaError:
    """The refusal of requests about ACLs where nobody would look at these."""
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: see authorizer.class.name.")


def acl_authorizer(settings: Settings, acls: Iterable[Acl]) -> AclAuthorizer | None:
    """None without authorizer.class.name. Raises ConfigError."""
    if not settings.text("authorizer.class.name"):
        for name in ("super.users", "allow.everyone.if.no.acl.found"):
            if settings.get(name):
                raise ConfigError(f"{name}: has no meaning without authorizer.class.name={STANDARD_AUTHORIZER}")
        return None
    super_users = parse_super_users(settings.text("super.users"))
    for principal in super_users:
        if ":" not in principal:
            raise ConfigError(f"super.users: {principal!r} has no type and would be nobody; write User:{principal}")
    return AclAuthorizer(
        acls,
        super_users=super_users,
        allow_everyone_if_no_acl_found=settings.boolean("allow.everyone.if.no.acl.found"),
    )
