"""What handlers of requests about ACLs share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.security.acl import Acl, AclAuthorizer
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.context import RequestContext


def require_acls(broker: Broker) -> AclAuthorizer:
    """Raises SECURITY_DISABLED if nobody would look at ACLs."""
    if broker.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: see authorizer.class.name.")
    return broker.acls


def tell_of_acls(context: RequestContext, acls: Iterable[Acl], done: str) -> Steps[None]:
    for acl in acls:
        yield
        context.tell_change(acl.resource.name, acl.name, f"{done} {acl}")
