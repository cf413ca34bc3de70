"""What handlers of requests about ACLs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.security.acl import AclAuthorizer

if TYPE_CHECKING:
    from oncelog.server.broker import Broker


def require_acls(broker: Broker) -> AclAuthorizer:
    """Raises SECURITY_DISABLED if nobody would look at ACLs."""
    if broker.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: see authorizer.class.name.")
    return broker.acls
