"""Records of `__cluster_metadata` and its control records as JSON. Those not known here are shown undecoded.

The keys of users are left out: with them one could pose as the broker.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from oncelog.inspection.kafka_json import to_json
from oncelog.protocol.compiler import read_version
from oncelog.protocol.messages.cluster_metadata import (
    CONTROL_TYPES,
    UserScramCredentialRecord,
    decode_control_record,
    decode_metadata_record,
)

_KEYS_OF_USERS: Final = frozenset({"salt", "storedKey", "serverKey"})


def metadata_record(value: bytes) -> dict[str, Any]:
    """Type, version and content. Raises MalformedRequest."""
    record = decode_metadata_record(value)
    if record.message is None:
        data: Any = {"undecoded": base64.b64encode(value[record.position :]).decode()}
    else:
        data = to_json(record.message, record.version)
        if isinstance(record.message, UserScramCredentialRecord):
            data = {name: content for name, content in data.items() if name not in _KEYS_OF_USERS}
    return {"type": record.type_name, "version": record.version, "data": data}


def control_record(control_type: int, value: bytes) -> tuple[str, dict[str, Any]] | None:
    """Name and content of a control record that is no transaction marker, or None if its type is unknown."""
    message = decode_control_record(control_type, value)
    if message is None:
        return None
    name, cls = CONTROL_TYPES[control_type]
    return name, to_json(message, min(read_version(value), cls.VERSIONS[1]))
