"""What every client needs to know: where the brokers are and how long to wait for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, Self

from oncelog.client.errors import ConfigurationError
from oncelog.core.address import Address, parse_address
from oncelog.core.config import (
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    Settings,
    refused,
    setting,
    without_effect,
)
from oncelog.core.dataclass import dataclass
from oncelog.core.tls_config import NAME_CHECK, TLS_KEYS
from oncelog.security.jaas import parse_jaas
from oncelog.security.sasl import MECHANISMS, OAUTHBEARER
from oncelog.tls import TlsSettings

logger = logging.getLogger(__name__)


_INT, _LONG, _BOOLEAN, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN, ConfigType.STRING
SECURITY: Final = ("security.", "sasl.", "ssl.")
PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = (PLAINTEXT, "SASL_PLAINTEXT", "SSL", "SASL_SSL")
TOKEN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
"""What makes the Java client read its token from a file."""
TUNES_JAVA: Final = "it tunes Kafka's Java client"


def _check_protocol(value: str) -> str | None:
    return None if value.upper() in PROTOCOLS else f"must be one of {', '.join(PROTOCOLS)}"


def _check_token_url(value: str) -> str | None:
    return None if value.startswith("file:///") else "must begin with file:///; tokens are fetched from nowhere else"


def _check_handler(value: str) -> str | None:
    return None if value in TOKEN_HANDLERS else f"no class is loaded; {TOKEN_HANDLERS[0]} stands for what is done here"


_SECURITY_KEYS: Final = [
    ConfigKey("security.protocol", _STRING, PLAINTEXT,
              f"The protocol for brokers: {', '.join(PROTOCOLS)}.", check=_check_protocol),
    ConfigKey("sasl.mechanism", _STRING, None, f"How to log in: {', '.join(MECHANISMS)}."),
    ConfigKey("sasl.username", _STRING, None, "The user who logs in."),
    ConfigKey("sasl.password", _STRING, None, "The password of that user.", sensitive=True),
    ConfigKey("sasl.jaas.config", _STRING, None,
              "User and password as a JAAS line: PlainLoginModule or ScramLoginModule with username and password.",
              sensitive=True),
    ConfigKey("sasl.oauthbearer.token.endpoint.url", _STRING, None,
              "For OAUTHBEARER: file:///..., a file with the token, which is read at each login.",
              check=_check_token_url),
    ConfigKey("sasl.login.callback.handler.class", _STRING, None,
              "Accepted for OAUTHBEARER, as the Java client needs it there. No class is loaded.", check=_check_handler),
    *TLS_KEYS.values(),
    NAME_CHECK,
]  # fmt: skip


CLIENT_TABLE: Final = ConfigTable(
    "client",
    [
        ConfigKey("bootstrap.servers", _STRING, "", "Brokers to begin with, host:port, separated by commas."),
        *_SECURITY_KEYS,
        ConfigKey("client.id", _STRING, "oncelog", "How brokers name this client in logs and metrics."),
        ConfigKey("request.timeout.ms", _INT, 30_000,
                  "How long one request may take before its connection is closed.", low=1),
        ConfigKey("default.api.timeout.ms", _INT, 60_000, "How long a whole call may take, with all its retries.",
                  low=1),
        ConfigKey("retry.backoff.ms", _LONG, 100, "The first pause before a retry; it doubles.", low=0),
        ConfigKey("retry.backoff.max.ms", _LONG, 1_000, "The longest pause before a retry.", low=0),
        ConfigKey("socket.connection.setup.timeout.ms", _LONG, 10_000, "How long connecting to a broker may take.",
                  low=1),
        ConfigKey("metadata.max.age.ms", _LONG, 300_000, "How often to look for new partitions.", low=1),
        ConfigKey("allow.auto.create.topics", _BOOLEAN, True, "Whether brokers may create a topic on first use."),
        ConfigKey("oncelog.transaction.version.max", _INT, 2,
                  "The newest transaction protocol to use, also if the cluster has a newer one.", low=0, high=2),
    ],
    others=[
        *without_effect(TUNES_JAVA, "client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push",
                        "metric.reporters", "metrics.num.samples", "metrics.recording.level",
                        "metrics.sample.window.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
                        "reconnect.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms"),
        *refused("no code of Kafka's Java client runs here: leave it out", "interceptor.classes"),
        *refused("not supported; see security.protocol for what is", *SECURITY),
    ],
    error=ConfigurationError,
)  # fmt: skip
"""Settings of all clients: Kafka's names, defaults of Kafka 4.3. Those of our own start with `oncelog.`."""


_SENT: Final = ("client_id", "sasl_username", "sasl_password", "sasl_jaas_config")
"""What brokers get as text when a connection begins, where no request could be refused for it."""


def _check_utf8(name: str, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name.replace('_', '.')}: the text is not UTF-8") from None


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
    security_protocol: str = setting(CLIENT_TABLE["security.protocol"], str.upper)
    sasl_mechanism: str | None = setting(CLIENT_TABLE["sasl.mechanism"])
    sasl_username: str | None = setting(CLIENT_TABLE["sasl.username"])
    sasl_password: str | None = setting(CLIENT_TABLE["sasl.password"])
    sasl_jaas_config: str | None = setting(CLIENT_TABLE["sasl.jaas.config"])
    """User and password as one line of Java's."""
    sasl_oauthbearer_token_endpoint_url: str | None = setting(CLIENT_TABLE["sasl.oauthbearer.token.endpoint.url"])
    ssl_truststore_location: str | None = setting(CLIENT_TABLE["ssl.truststore.location"])
    ssl_truststore_certificates: str | None = setting(CLIENT_TABLE["ssl.truststore.certificates"])
    ssl_truststore_type: str | None = setting(CLIENT_TABLE["ssl.truststore.type"])
    ssl_keystore_location: str | None = setting(CLIENT_TABLE["ssl.keystore.location"])
    ssl_keystore_key: str | None = setting(CLIENT_TABLE["ssl.keystore.key"])
    ssl_keystore_certificate_chain: str | None = setting(CLIENT_TABLE["ssl.keystore.certificate.chain"])
    ssl_keystore_type: str | None = setting(CLIENT_TABLE["ssl.keystore.type"])
    ssl_key_password: str | None = setting(CLIENT_TABLE["ssl.key.password"])
    ssl_keystore_password: str | None = setting(CLIENT_TABLE["ssl.keystore.password"])
    ssl_truststore_password: str | None = setting(CLIENT_TABLE["ssl.truststore.password"])
    ssl_cipher_suites: tuple[str, ...] = setting(CLIENT_TABLE["ssl.cipher.suites"])
    ssl_enabled_protocols: tuple[str, ...] = setting(CLIENT_TABLE["ssl.enabled.protocols"])
    ssl_endpoint_identification_algorithm: str = setting(CLIENT_TABLE["ssl.endpoint.identification.algorithm"])

    def __post_init__(self) -> None:
        CLIENT_TABLE.parse({one.metadata["key"].name: getattr(self, one.name) for one in fields(self) if one.metadata})
        parse_addresses(self.bootstrap_servers)
        for name in _SENT:
            _check_utf8(name, getattr(self, name))
        if self.has_sasl:
            if self.sasl_mechanism not in MECHANISMS:
                known = ", ".join(MECHANISMS)
                raise ConfigurationError(f"sasl.mechanism: {self.security_protocol} needs one of {known}")
            if self.sasl_mechanism != OAUTHBEARER:
                _credentials(self)
            elif not self.sasl_oauthbearer_token_endpoint_url:
                raise ConfigurationError("sasl.oauthbearer.token.endpoint.url: OAUTHBEARER needs the file of the token")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password for SASL."""
        return _credentials(self)

    @property
    def tls(self) -> TlsSettings | None:
        if not self.security_protocol.endswith("SSL"):
            return None
        return TlsSettings(
            keystore_location=self.ssl_keystore_location,
            keystore_type=self.ssl_keystore_type,
            keystore_key=self.ssl_keystore_key,
            keystore_chain=self.ssl_keystore_certificate_chain,
            key_password=self.ssl_key_password,
            truststore_location=self.ssl_truststore_location,
            truststore_type=self.ssl_truststore_type,
            truststore_certificates=self.ssl_truststore_certificates,
            enabled_protocols=self.ssl_enabled_protocols,
            cipher_suites=self.ssl_cipher_suites,
            keystore_password=self.ssl_keystore_password,
            truststore_password=self.ssl_truststore_password,
            check_hostname=bool(self.ssl_endpoint_identification_algorithm),
        )

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


def _credentials(config: ClientConfig) -> tuple[str, str]:
    user, password = config.sasl_username, config.sasl_password
    if config.sasl_jaas_config is not None:
        if user is not None or password is not None:
            other = "sasl.username" if user is not None else "sasl.password"
            raise ConfigurationError(f"sasl.jaas.config and {other} are both given: one of them is enough")
        try:
            line = parse_jaas(config.sasl_jaas_config, key="sasl.jaas.config")
        except ConfigError as error:
            raise ConfigurationError(str(error)) from None
        if line.family != str(config.sasl_mechanism).partition("-")[0]:
            raise ConfigurationError(
                f"sasl.jaas.config is for {line.family}, sasl.mechanism is {config.sasl_mechanism}"
            )
        user, password = line.options.get("username"), line.options.get("password")
    if not user or not password:
        raise ConfigurationError(
            f"{config.security_protocol} needs sasl.username and sasl.password, or both in sasl.jaas.config"
        )
    return user, password


def parse_addresses(servers: str | Iterable[str]) -> list[Address]:
    """`host:port` pairs, separated by commas. An IPv6 address stands in brackets."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = []
    for text in filter(None, (part.strip() for part in texts)):
        try:
            addresses.append(parse_address(text))
        except ValueError as error:
            raise ConfigurationError(f"bootstrap.servers: {error}") from error
    if not addresses:
        raise ConfigurationError("bootstrap.servers is empty: name at least one broker as host:port")
    return addresses


def parse_settings(table: ConfigTable, properties: Mapping[str, Any], prefix: str = "") -> Settings:
    """Values by Kafka's names, as text or as plain Python values. Raises ConfigurationError for what is wrong, and
    logs what is accepted without effect. `prefix` is what stands before Kafka's names in the table."""
    if not isinstance(properties, Mapping):
        example = '{"bootstrap.servers": "127.0.0.1:9092"}'
        raise table.error(f"settings are a {type(properties).__name__}: give a dict with Kafka's names, as {example}")
    for name in properties:
        if not isinstance(name, str):
            raise table.error(f"{name!r}: names of settings are text")
    idle = _idle_security(properties, prefix, table.error)
    settings = table.parse({name: value for name, value in properties.items() if name not in idle})
    protocol = str(properties.get(f"{prefix}security.protocol", PLAINTEXT)).upper()
    for warning in [*settings.warnings, *(f"{name} has no effect: the connection is {protocol}" for name in idle)]:
        logger.warning(warning)
    return settings


def check_security(properties: Mapping[str, Any]) -> None:
    """For settings that go to another client too: raise ConfigurationError if they ask for a connection that this
    client cannot make."""
    asked = properties.keys() - _idle_security(properties)
    CLIENT_TABLE.parse({name: properties[name] for name in asked if name.startswith(SECURITY)})


def _idle_security(
    properties: Mapping[str, Any], prefix: str = "", error: type[ConfigError] = ConfigurationError
) -> set[str]:
    """Kafka ignores `sasl.` and `ssl.` settings if the protocol uses neither. If no protocol is given, ignoring them
    could connect with less security than was meant: raises `error`."""
    key = f"{prefix}security.protocol"
    protocol = str(properties.get(key, "")).upper()
    used = [family for family, ending in (("sasl.", "SASL_"), ("ssl.", "SSL")) if _has(protocol, ending)]
    given = {name for name in properties if name.startswith(tuple(prefix + family for family in ("sasl.", "ssl.")))}
    idle = {name for name in given if not name.startswith(tuple(prefix + family for family in used))}
    if idle and not protocol:
        raise error(f"{min(idle)}: has no effect without {key}, which is one of {', '.join(PROTOCOLS)}")
    return idle


def _has(protocol: str, part: str) -> bool:
    return protocol.startswith(part) if part == "SASL_" else protocol.endswith(part)
