"""What entries of the metadata that clients name and number as they like take in memory: estimates.

Each is there several times: as a record of the log, in the image of the controller and of the broker, and in what the
broker makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.controller.image import ConfigResource, QuotaEntity, ScramCredentialKey
from oncelog.protocol.messages.cluster_metadata import AccessControlEntryRecord, UserScramCredentialRecord

ENTRY_BYTES: Final = 2_000
"""Without its texts. Ten thousand quotas took 20 MiB."""
SETTING_BYTES: Final = 300
COPIES: Final = 2
"""Of texts."""


def settings_bytes(resource: ConfigResource, settings: Mapping[str, str]) -> int:
    return sum(SETTING_BYTES + COPIES * len(value) for value in settings.values()) + COPIES * len(resource.name)


def quota_bytes(entity: QuotaEntity, quotas: Mapping[str, float]) -> int:
    return ENTRY_BYTES + COPIES * sum(len(name or "") for _, name in entity)


def acl_bytes(_: object, acl: AccessControlEntryRecord) -> int:
    return ENTRY_BYTES + COPIES * (len(acl.resource_name) + len(acl.principal) + len(acl.host))


def user_bytes(key: ScramCredentialKey, user: UserScramCredentialRecord) -> int:
    return ENTRY_BYTES + COPIES * (len(key.name) + len(user.salt))
