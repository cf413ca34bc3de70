"""What every client needs to know: where the brokers are and how long to wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from oncelog.client.errors import ConfigurationError
from oncelog.core.config import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    Settings,
    format_value,
)

Address = tuple[str, int]

_MS: Final = ConfigType.INT
_NOT_YET: Final = "TLS and SASL are not supported yet"
_SECURITY: Final = ("security.", "sasl.", "ssl.")
PLAINTEXT: Final = "PLAINTEXT"


def _check_plaintext(value: object) -> str | None:
    return None if str(value).upper() == PLAINTEXT else f"{_NOT_YET}, the only one is {PLAINTEXT}"


COMMON_KEYS: Final = (
    ConfigKey("bootstrap.servers", ConfigType.STRING, "", "Brokers to begin with, host:port, separated by commas."),
    ConfigKey(
        "security.protocol",
        ConfigType.STRING,
        PLAINTEXT,
        f"How brokers are spoken to. {_NOT_YET}: {PLAINTEXT} is the only one.",
        check=_check_plaintext,
    ),
    ConfigKey("client.id", ConfigType.STRING, "oncelog", "How brokers name this client in logs and metrics."),
    ConfigKey(
        "request.timeout.ms", _MS, 30_000, "How long one request may take before its connection is closed.", low=1
    ),
    ConfigKey("default.api.timeout.ms", _MS, 60_000, "How long a whole call may take, with all its retries.", low=1),
    ConfigKey("retry.backoff.ms", ConfigType.LONG, 100, "The first pause before a retry; it doubles.", low=0),
    ConfigKey("retry.backoff.max.ms", ConfigType.LONG, 1_000, "The longest pause before a retry.", low=0),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        ConfigType.LONG,
        10_000,
        "How long connecting to a broker may take.",
        low=1,
    ),
    ConfigKey("metadata.max.age.ms", ConfigType.LONG, 300_000, "When to look for new partitions unasked.", low=1),
    ConfigKey("allow.auto.create.topics", ConfigType.BOOLEAN, True, "Whether brokers may create a topic on first use."),
    ConfigKey(
        "oncelog.transaction.version.max",
        ConfigType.INT,
        2,
        "Lower it to speak an older transaction protocol to a cluster that has a newer one.",
        low=0,
        high=2,
    ),
)
"""Settings of all clients: Kafka's names, defaults of Kafka 4.3. Those of our own start with `oncelog.`."""
_COMMON_TABLE: Final = ConfigTable("client", COMMON_KEYS)

__all__ = [
    "COMMON_KEYS",
    "INT_MAX",
    "LONG_MAX",
    "Address",
    "ClientConfig",
    "parse_addresses",
    "parse_settings",
    "refuse_security",
]


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

    @classmethod
    def parse(cls, properties: Mapping[str, Any]) -> Self:
        """From a dict with Kafka's names. Raises ConfigurationError that names the settings at fault."""
        return cls.from_settings(parse_settings(_COMMON_TABLE, properties))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            bootstrap_servers=settings.text("bootstrap.servers"),
            client_id=settings.text("client.id"),
            request_timeout_ms=settings.integer("request.timeout.ms"),
            default_api_timeout_ms=settings.integer("default.api.timeout.ms"),
            retry_backoff_ms=settings.integer("retry.backoff.ms"),
            retry_backoff_max_ms=settings.integer("retry.backoff.max.ms"),
            socket_connection_setup_timeout_ms=settings.integer("socket.connection.setup.timeout.ms"),
            metadata_max_age_ms=settings.integer("metadata.max.age.ms"),
            allow_auto_create_topics=settings.boolean("allow.auto.create.topics"),
            transaction_version_max=settings.integer("oncelog.transaction.version.max"),
        )

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


def parse_settings(table: ConfigTable, properties: Mapping[str, Any]) -> Settings:
    """Values by Kafka's names, as text or as plain Python values. Raises ConfigurationError for unknown names."""
    entries = {name: _text(name, value) for name, value in properties.items() if value is not None}
    for name in entries:
        if name.startswith(_SECURITY) and name not in table:
            raise ConfigurationError(f"{name}: {_NOT_YET}. Leave it out, and name brokers that need neither")
    try:
        return table.parse(entries)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from error


def refuse_security(properties: Mapping[str, Any]) -> None:
    """For settings of which others take their part: raise ConfigurationError if they ask for a secure connection.

    Kafka gives `sasl.` and `ssl.` no meaning with PLAINTEXT, so they are not refused where that is said.
    """
    protocol = properties.get("security.protocol")
    parse_settings(_COMMON_TABLE, {"security.protocol": protocol})
    if protocol is None:
        parse_settings(_COMMON_TABLE, {name: value for name, value in properties.items() if name.startswith(_SECURITY)})


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    if not isinstance(value, str | bool | int | float):
        raise ConfigurationError(f"{name}: {value!r} is neither text nor a number")
    return format_value(value) or ""
