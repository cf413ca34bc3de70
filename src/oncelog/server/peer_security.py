"""How this broker connects to other nodes: settings of the client, taken from those of the broker.

As in Kafka, the listener that is connected to tells the protocol, `sasl.mechanism.inter.broker.protocol` or
`sasl.mechanism.controller.protocol` the mechanism, and the JAAS line of that listener the user and the password to log
in with. Keys and certificates are those of the listener: `listener.name.NAME.ssl.*`, else `ssl.*`.
"""

from __future__ import annotations

from typing import Final

from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConfigurationError
from oncelog.core.config import ConfigError, Settings
from oncelog.core.tls_config import NAME_CHECK
from oncelog.security.jaas import parse_jaas
from oncelog.security.sasl import MECHANISMS, OAUTHBEARER
from oncelog.server.listener import JAAS, PREFIX, SecurityProtocol, overrides_of, own_settings
from oncelog.tls import TlsSettings

SETUP_TIMEOUT_MS: Final = 2_000
_SSL_FIELDS: Final = (
    *("keystore_location", "keystore_type", "keystore_key", "keystore_certificate_chain", "key_password"),
    *("truststore_location", "truststore_type", "truststore_certificates"),
    *("keystore_password", "truststore_password"),
)


def plain_config(client_id: str) -> ClientConfig:
    """Settings of connections without security. Each connection brings its address."""
    return ClientConfig(
        bootstrap_servers="localhost:1",
        client_id=client_id,
        socket_connection_setup_timeout_ms=SETUP_TIMEOUT_MS,
    )


def peer_config(
    settings: Settings, client_id: str, listener: str, protocol: SecurityProtocol, mechanism_key: str
) -> ClientConfig:
    """Settings of connections to the listener of that name on other nodes. Raises ConfigError."""
    given = overrides_of(settings, listener)
    own = own_settings(settings, given)
    security: dict[str, object] = {"security_protocol": protocol.value}
    if protocol.has_tls:
        security |= {
            f"ssl_{name}": value
            for name in _SSL_FIELDS
            if (value := own.optional_text(f"ssl.{name.replace('_', '.')}")) is not None
        }
        security["ssl_enabled_protocols"] = own.words("ssl.enabled.protocols")
        security["ssl_cipher_suites"] = own.words("ssl.cipher.suites")
        checks_names = own.optional_text(NAME_CHECK.name)
        security["ssl_endpoint_identification_algorithm"] = "https" if checks_names else ""
    if protocol.has_sasl:
        security |= _login(own, listener, mechanism_key, given)
    plain = plain_config(client_id)
    try:
        config = ClientConfig(
            bootstrap_servers=plain.bootstrap_servers,
            client_id=client_id,
            socket_connection_setup_timeout_ms=SETUP_TIMEOUT_MS,
            **security,  # type: ignore[arg-type]  # checked when it is made
        )
    except ConfigurationError as error:
        raise ConfigError(f"connections to listener {listener} of other nodes: {error}") from error
    _check(config.tls)
    return config


def _check(tls: TlsSettings | None) -> None:
    """Files that cannot be read are told at the start, not by every connection."""
    if tls is not None:
        from oncelog.tls import client_context

        client_context(tls)


def _login(own: Settings, listener: str, mechanism_key: str, given: dict[str, str]) -> dict[str, str]:
    mechanism = (own.optional_text(mechanism_key) or "").upper()
    if mechanism not in MECHANISMS or mechanism == OAUTHBEARER:
        raise ConfigError(f"{mechanism_key}: brokers log in to listener {listener} with PLAIN or SCRAM; name which")
    rest = f"{mechanism.lower()}.{JAAS}"
    key = f"{PREFIX}{listener.lower()}.{rest}"
    if rest not in given:
        raise ConfigError(f'{key}: the broker logs in with what it has: username="NAME" password="PASSWORD"')
    line = parse_jaas(given[rest], key=key)
    user, password = line.options.get("username"), line.options.get("password")
    if not user or not password:
        raise ConfigError(f"{key}: username and password, with which the broker logs in to others, are missing")
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}
