"""What a console is told when it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelog.client.config import ClientConfig

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
HANGING_AFTER_MS: Final = 15 * 60_000
"""As long as Kafka lets a transaction take at most: a younger one may belong to a producer that is only slow."""
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    client: ClientConfig
    command_suffix: tuple[str, ...] = ()
    """The options by which a command reaches the same cluster, for commands that are shown to be copied."""
    audit_log: Path | None = None
    """Changes are allowed if there is one."""
    hanging_after_ms: int = HANGING_AFTER_MS
    poll_interval_ms: int = 1_000
    log_in: bool = False
    """Visitors log in as users of the cluster."""
    host_names: frozenset[str] = frozenset()
    """Names besides those of loopback that requests may be addressed to."""
    certificate: Path | None = None
    key: Path | None = None

    @property
    def allow_changes(self) -> bool:
        return self.audit_log is not None


def parse_listen(text: str, *, is_protected: bool = False) -> tuple[str, int]:
    """Host and port. Raises ValueError for another address than loopback, unless visitors log in through TLS."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is not an address such as {DEFAULT_LISTEN}")
    if not is_protected and not is_loopback(host):
        raise ValueError(
            f"{host!r} is not a loopback address. Without --log-in, --certificate and --key the console listens on "
            f"this machine alone: use {DEFAULT_LISTEN}, and an SSH tunnel from elsewhere"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
