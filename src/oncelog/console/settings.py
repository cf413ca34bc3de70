"""What a console is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelog.client.config import ClientConfig
from oncelog.console.masks import Mask
from oncelog.core.address import Address, parse_address
from oncelog.schemas.registry_client import RegistryClient

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
HANGING_AFTER_MS: Final = 15 * 60_000
"""As long as Kafka lets a transaction take at most: a younger one may belong to a producer that is only slow."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    client: ClientConfig
    command_suffix: tuple[str, ...] = ()
    """The options by which a command reaches the same cluster, for commands that are shown to be copied."""
    audit_log: Path | None = None
    """Changes are allowed if there is one."""
    hanging_after_ms: int = HANGING_AFTER_MS
    poll_interval_ms: int = 800
    """From one poll to the next: with the page that is made then, what happens is seen within a second."""
    log_in: bool = False
    """Visitors log in as users of the cluster."""
    host_names: frozenset[str] = frozenset()
    """Names besides those of loopback that requests may be addressed to."""
    masks: tuple[Mask, ...] = ()
    schema_registry: RegistryClient | None = None
    """Values with a schema in front are decoded by it."""
    certificate: Path | None = None
    key: Path | None = None

    @property
    def allow_changes(self) -> bool:
        return self.audit_log is not None


def parse_listen(text: str, *, is_protected: bool = False) -> Address:
    """Host and port. Raises ValueError for another address than loopback, unless visitors log in through TLS."""
    address = parse_address(text)
    if not is_protected and not address.is_loopback:
        raise ValueError(
            f"{address.host!r} is not a loopback address. Without --log-in, --certificate and --key the console "
            f"listens on this machine alone: use {DEFAULT_LISTEN}, and an SSH tunnel from elsewhere"
        )
    return address
