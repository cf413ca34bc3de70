"""Users and ACLs of Kafka's metadata as the broker uses them. One that is not understood is told of: it may deny."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from oncelog.controller.image import Image
from oncelog.core.errors import KafkaError

if TYPE_CHECKING:
    from oncelog.security.acl import Acl
    from oncelog.security.scram import ScramCredential, ScramUser

log = logging.getLogger("oncelog.server")


def scram_users(image: Image) -> dict[ScramUser, ScramCredential]:
    from oncelog.security.scram import ScramCredential, ScramMechanism, ScramUser  # if there are any

    users: dict[ScramUser, ScramCredential] = {}
    for key, record in image.scram.items():
        try:
            user = ScramUser(key.name, ScramMechanism(key.mechanism))
        except ValueError as error:
            log.warning("user %s is not taken over: %s", key.name, error)
        else:
            users[user] = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
    return users


def known_acls(image: Image) -> dict[UUID, Acl]:
    from oncelog.controller.acl_changes import acl_of_record

    acls: dict[UUID, Acl] = {}
    for acl_id, entry in image.acls.items():
        try:
            acls[acl_id] = acl_of_record(entry)
        except KafkaError as error:
            log.error("an ACL of %s on %r is not taken over: %s", entry.principal, entry.resource_name, error.message)
    return acls


def acls_of(image: Image) -> list[Acl]:
    return list(known_acls(image).values())
