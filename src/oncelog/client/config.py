"""What every client needs to know: where the brokers are and how long to wait for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from oncelog.client.errors import ConfigurationError
from oncelog.core.config import ConfigKey, ConfigTable, ConfigType, Settings, refused, setting, without_effect

logger = logging.getLogger(__name__)

Address = tuple[str, int]

_INT, _LONG, _BOOLEAN, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN, ConfigType.STRING
_NOT_YET: Final = "TLS and SASL are not supported yet"
SECURITY: Final = ("security.", "sasl.", "ssl.")
PLAINTEXT: Final = "PLAINTEXT"
TUNES_JAVA: Final = "it tunes Kafka's Java client"


def _check_plaintext(value: str) -> str | None:
    return None if value.upper() == PLAINTEXT else f"{_NOT_YET}, the only one is {PLAINTEXT}"


CLIENT_TABLE: Final = ConfigTable(
    "client",
    [
        ConfigKey("bootstrap.servers", _STRING, "", "Brokers to begin with, host:port, separated by commas."),
        ConfigKey("security.protocol", _STRING, PLAINTEXT,
                  f"How brokers are spoken to. {_NOT_YET}: {PLAINTEXT} is the only one.", check=_check_plaintext),
        ConfigKey("client.id", _STRING, "oncelog", "How brokers name this client in logs and metrics."),
        ConfigKey("request.timeout.ms", _INT, 30_000,
                  "How long one request may take before its connection is closed.", low=1),
        ConfigKey("default.api.timeout.ms", _INT, 60_000, "How long a whole call may take, with all its retries.",
                  low=1),
        ConfigKey("retry.backoff.ms", _LONG, 100, "The first pause before a retry; it doubles.", low=0),
        ConfigKey("retry.backoff.max.ms", _LONG, 1_000, "The longest pause before a retry.", low=0),
        ConfigKey("socket.connection.setup.timeout.ms", _LONG, 10_000, "How long connecting to a broker may take.",
                  low=1),
        ConfigKey("metadata.max.age.ms", _LONG, 300_000, "When to look for new partitions unasked.", low=1),
        ConfigKey("allow.auto.create.topics", _BOOLEAN, True, "Whether brokers may create a topic on first use."),
        ConfigKey("oncelog.transaction.version.max", _INT, 2,
                  "Lower it to speak an older transaction protocol to a cluster that has a newer one.", low=0, high=2),
    ],
    others=[
        *without_effect(TUNES_JAVA, "client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push",
                        "metric.reporters", "metrics.num.samples", "metrics.recording.level",
                        "metrics.sample.window.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
                        "reconnect.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms"),
        *refused("no code of Kafka's Java client runs here: leave it out", "interceptor.classes"),
        *refused(f"{_NOT_YET}. Leave it out, and name brokers that need neither", *SECURITY),
    ],
    error=ConfigurationError,
)  # fmt: skip
"""Settings of all clients: Kafka's names, defaults of Kafka 4.3. Those of our own start with `oncelog.`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings common to producers, consumers and admins; immutable, hashable and picklable.

    Each field is Kafka's setting of the same name with dots for underscores.
    """

    bootstrap_servers: str
    client_id: str = setting(CLIENT_TABLE["client.id"])
    request_timeout_ms: int = setting(CLIENT_TABLE["request.timeout.ms"])
    """One request; without an answer by then the connection is given up."""
    default_api_timeout_ms: int = setting(CLIENT_TABLE["default.api.timeout.ms"])
    """A whole call with all its retries."""
    retry_backoff_ms: int = setting(CLIENT_TABLE["retry.backoff.ms"])
    retry_backoff_max_ms: int = setting(CLIENT_TABLE["retry.backoff.max.ms"])
    socket_connection_setup_timeout_ms: int = setting(CLIENT_TABLE["socket.connection.setup.timeout.ms"])
    metadata_max_age_ms: int = setting(CLIENT_TABLE["metadata.max.age.ms"])
    allow_auto_create_topics: bool = setting(CLIENT_TABLE["allow.auto.create.topics"])
    transaction_version_max: int = setting(CLIENT_TABLE["oncelog.transaction.version.max"])
    """Lower it to speak the older transaction protocol to a cluster that has a newer one."""

    def __post_init__(self) -> None:
        CLIENT_TABLE.parse({one.metadata["key"].name: getattr(self, one.name) for one in fields(self) if one.metadata})
        parse_addresses(self.bootstrap_servers)

    @classmethod
    def parse(cls, properties: Mapping[str, Any]) -> Self:
        """From a dict with Kafka's names. Raises ConfigurationError that names the settings at fault."""
        return cls.from_settings(parse_settings(CLIENT_TABLE, properties))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return settings.bind(cls, bootstrap_servers=settings.text("bootstrap.servers"))

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


def parse_settings(table: ConfigTable, properties: Mapping[str, Any], prefix: str = "") -> Settings:
    """Values by Kafka's names, as text or as plain Python values. Raises ConfigurationError for what is wrong, and
    logs what is accepted without effect. `prefix` is what stands before Kafka's names in the table."""
    idle = _idle_security(properties, prefix)
    settings = table.parse({name: value for name, value in properties.items() if name not in idle})
    for warning in [*settings.warnings, *(f"{name} has no effect: the connection is {PLAINTEXT}" for name in idle)]:
        logger.warning(warning)
    return settings


def refuse_security(properties: Mapping[str, Any]) -> None:
    """For settings of which others take their part: raise ConfigurationError if they ask for a secure connection."""
    asked = properties.keys() - _idle_security(properties)
    CLIENT_TABLE.parse({name: properties[name] for name in asked if name.startswith(SECURITY)})


def _idle_security(properties: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Kafka gives `sasl.` and `ssl.` no meaning with PLAINTEXT, so they are not refused where that is said."""
    protocol = f"{prefix}security.protocol"
    if str(properties.get(protocol, "")).upper() != PLAINTEXT:
        return set()
    families = tuple(prefix + family for family in SECURITY)
    return {name for name in properties if name.startswith(families) and name != protocol}
