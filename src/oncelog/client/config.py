"""What every client needs to know: where the brokers are and how long to wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.client.errors import ConfigurationError

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings common to producers, consumers and admins; immutable, hashable and picklable.

    Each field is Kafka's setting of the same name with dots for underscores.
    """

    bootstrap_servers: str
    client_id: str = "oncelog"
    request_timeout_ms: int = 30_000
    """One request; without an answer by then the connection is given up."""
    default_api_timeout_ms: int = 60_000
    """A whole call with all its retries."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    allow_auto_create_topics: bool = True
    transaction_version_max: int = 2
    """Lower it to speak the older transaction protocol to a cluster that has a newer one."""

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers)

    @property
    def addresses(self) -> list[Address]:
        return parse_addresses(self.bootstrap_servers)


def parse_addresses(servers: str | Iterable[str]) -> list[Address]:
    """`host:port` pairs, separated by commas. An IPv6 address stands in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = []
    for text in filter(None, (part.strip() for part in texts)):
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ConfigurationError(f"bootstrap.servers: {text!r} is not host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ConfigurationError("bootstrap.servers is empty: name at least one broker as host:port")
    return addresses
