"""The audit log: who was refused what, and who changed what, as one JSON object per line of the logger `oncelog.audit`.

| field | meaning |
| --- | --- |
| event | `refused`, `changed`, `login-failed` |
| principal, host, listener, client_id | who; the principal of a failed login is not known |
| mechanism | of a failed login: one of SASL, or `certificate` |
| api | the request, as Kafka calls it |
| operation | of a refusal: the one that ACLs do not allow |
| resource, name | what it was about |
| detail | what became of it, or why it failed |

Lines are limited as all others of the log, but for each principal on its own (for each address, where logins fail), so
that nobody can hide what others do behind many refusals. There are never passwords, tokens, keys or records in it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from oncelog.server.operator_log import printable, shortened

log = logging.getLogger("oncelog.audit")

CERTIFICATE: Final = "certificate"
"""The mechanism of clients that are known by their certificates."""
FIELD_CHARS_MAX: Final = 250
"""Lines of the audit log are not cut, so that each is valid JSON."""


def tell_failed_login(host: str, listener: str, mechanism: str, reason: str) -> None:
    """`mechanism` is one of SASL, or that of client certificates."""
    fields = {"host": host, "listener": listener, "mechanism": mechanism, "detail": reason}
    tell("login-failed", host, fields, level=logging.WARNING)


def tell(event: str, of: str, fields: Mapping[str, str], *, level: int = logging.INFO) -> None:
    """`of` is whoever shares a limit of lines."""
    if not log.isEnabledFor(level):
        return
    entry = {"event": event, **{name: shortened(printable(text), FIELD_CHARS_MAX) for name, text in fields.items()}}
    log.log(level, json.dumps(entry, ensure_ascii=False), extra={"audit": entry, "kind": (event, of)})
