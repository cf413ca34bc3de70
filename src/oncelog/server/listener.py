"""Where clients are accepted and how: the listeners of the settings.

A listener is `NAME://HOST:PORT`, or just `HOST:PORT`. Its protocol is its name, or what
`listener.security.protocol.map` says. Settings that begin with `listener.name.NAME.` are for it alone. What is half
said about security is refused: a broker must not start with less of it than its operator believes.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import INT_MAX, ConfigError, Settings, did_you_mean
from oncelog.security.jaas import parse_jaas
from oncelog.security.principal_mapping import PrincipalMapping
from oncelog.security.sasl import MECHANISMS, PLAIN
from oncelog.server.connection_limits import ListenerLimits
from oncelog.tls import TlsSettings

_PREFIX: Final = "listener.name."
_JAAS: Final = "sasl.jaas.config"
_CONNECTION_KEYS: Final = ("max.connections", "max.connection.creation.rate")
_SASL_KEYS: Final = ("sasl.enabled.mechanisms", "connections.max.reauth.ms", "sasl.server.max.receive.size")
_CLIENT_AUTH: Final = "ssl.client.auth"
_TLS_KEYS: Final = tuple(key.name for key in BROKER_CONFIG if key.name.startswith("ssl."))
_OVERRIDES: Final = _SASL_KEYS + _TLS_KEYS + _CONNECTION_KEYS
LOOPBACK: Final = "127.0.0.1"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def listen_problem(address: Address, error: OSError) -> str:
    """Why nothing can listen there, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"there is no host {address.host} ({error.strerror})"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{address} is in use by another process; stop it, or use another port (0 picks a free one)"
        case errno.EADDRNOTAVAIL:
            return f"{address.host} is no address of this machine; 0.0.0.0 stands for all of them"
        case errno.EACCES:
            return f"this user may not listen on {address}; ports below 1024 need more rights"
        case _:
            return f"{address} cannot be listened on: {error.strerror or error}"


class SecurityProtocol(Enum):
    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    protocol: SecurityProtocol
    address: Address
    advertised: Address | None = None
    """None: as it is bound."""
    mechanisms: tuple[str, ...] = ()
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of PLAIN, by user."""
    reauth_ms: int = 0
    login_max_bytes: int = 0
    tls: TlsSettings | None = None
    mapping: PrincipalMapping | None = None
    """For users that are known by their certificate."""
    limits: ListenerLimits = field(default_factory=ListenerLimits)


def parse_listeners(settings: Settings) -> list[Listener]:
    """Raises ConfigError for the first thing that is wrong."""
    bound = dict(_addresses(settings.text("listeners"), "listeners"))
    for name in (settings.optional_text("controller.listener.names") or "").split(","):
        # A folder of Kafka's may have been a controller's too. There is none here.
        bound.pop(name.strip().upper(), None)
    if not bound:
        raise ConfigError("listeners: there is none for clients")
    advertised = _advertised(settings, bound)
    protocols = _protocols(settings)
    overrides = _overrides(settings, bound)
    listeners = [
        _listener(settings, name, address, protocols, overrides.get(name, {}), advertised.get(name))
        for name, address in bound.items()
    ]
    if settings.get("sasl.enabled.mechanisms") and not any(listener.protocol.has_sasl for listener in listeners):
        raise ConfigError("sasl.enabled.mechanisms: no listener is SASL_PLAINTEXT or SASL_SSL")
    if not any(listener.protocol.has_tls for listener in listeners):
        for key in settings.values.keys() & set(_TLS_KEYS):
            raise ConfigError(f"{key}: no listener is SSL or SASL_SSL")
    return listeners


def between_brokers(listeners: list[Listener], settings: Settings) -> str:
    """The name of the listener by which the brokers of a cluster reach each other. Raises ConfigError."""
    named = (settings.optional_text("inter.broker.listener.name") or "").upper()
    plain = [listener.name for listener in listeners if listener.protocol is SecurityProtocol.PLAINTEXT]
    if named and named not in {listener.name for listener in listeners}:
        raise ConfigError(f"inter.broker.listener.name: {named} is not among the listeners")
    if not plain or (named and named not in plain):
        raise ConfigError(
            "process.roles=broker: TLS and SASL between brokers are not supported yet; give the broker a PLAINTEXT "
            "listener and name it with inter.broker.listener.name"
        )
    return named or (SecurityProtocol.PLAINTEXT.value if SecurityProtocol.PLAINTEXT.value in plain else plain[0])


def _addresses(text: str, key: str) -> Iterator[tuple[str, Address]]:
    seen = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, rest = part.rpartition("://")
        name = name.upper() if separator else SecurityProtocol.PLAINTEXT.value
        if name in seen:
            raise ConfigError(f"{key}: there are two listeners with the name {name}; each needs one of its own")
        seen.add(name)
        yield name, parse_address(rest, key)


def parse_address(text: str, key: str) -> Address:
    """Raises ConfigError with the name of the setting."""
    host, colon, port_text = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port_text.isdigit() or int(port_text) > 65_535:
        raise ConfigError(f"{key}: {text!r} is not of the form HOST:PORT, such as 127.0.0.1:9092")
    return Address(host or LOOPBACK, int(port_text))


def _advertised(settings: Settings, bound: Mapping[str, Address]) -> dict[str, Address]:
    text = settings.optional_text("advertised.listeners")
    if not text:
        return {}
    if "://" not in text and "," not in text and len(bound) == 1:
        return {name: parse_address(text, "advertised.listeners") for name in bound}
    advertised = dict(_addresses(text, "advertised.listeners"))
    unknown = advertised.keys() - bound.keys()
    if unknown:
        raise ConfigError(f"advertised.listeners: {', '.join(sorted(unknown))} is not among the listeners")
    return advertised


def _protocols(settings: Settings) -> dict[str, SecurityProtocol]:
    found = {protocol.value: protocol for protocol in SecurityProtocol}
    text = settings.optional_text("listener.security.protocol.map") or ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (word.strip().upper() for word in part.partition(":"))
        if not colon or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"listener.security.protocol.map: {part!r} is not NAME:PROTOCOL with one of {known}")
        found[name] = SecurityProtocol[protocol]
    return found


def _overrides(settings: Settings, bound: Mapping[str, Address]) -> dict[str, dict[str, str]]:
    """By listener."""
    found: dict[str, dict[str, str]] = {}
    for key, value in settings.values.items():
        if not key.startswith(_PREFIX):
            continue
        name, dot, rest = key.removeprefix(_PREFIX).partition(".")
        if not dot or name.upper() not in bound:
            raise ConfigError(f"{key}: there is no listener {name.upper()}")
        if rest not in _OVERRIDES and not re.fullmatch(rf"[a-z0-9-]+\.{re.escape(_JAAS)}", rest):
            raise ConfigError(f"{key}: not a setting of listeners here{did_you_mean(rest, _OVERRIDES)}")
        found.setdefault(name.upper(), {})[rest] = str(value)
    return found


def _listener(
    settings: Settings,
    name: str,
    address: Address,
    protocols: Mapping[str, SecurityProtocol],
    overrides: dict[str, str],
    advertised: Address | None,
) -> Listener:
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(f"listeners: the protocol of {name} is not in listener.security.protocol.map")
    _refuse_idle(name, protocol, overrides)
    own = _own_settings(settings, overrides)
    given = [own.integer(key) if key in overrides else INT_MAX for key in _CONNECTION_KEYS]
    limits = ListenerLimits(*given)
    tls = _tls(own, protocol, overrides) if protocol.has_tls else None
    if not protocol.has_sasl:
        mapping = PrincipalMapping(own.text("ssl.principal.mapping.rules")) if tls is not None else None
        return Listener(name, protocol, address, advertised, tls=tls, mapping=mapping, limits=limits)
    mechanisms = own.words("sasl.enabled.mechanisms") if own.get("sasl.enabled.mechanisms") else ()
    unknown = [mechanism for mechanism in mechanisms if mechanism not in MECHANISMS]
    if unknown:
        raise ConfigError(f"sasl.enabled.mechanisms: {unknown[0]} is not supported; there is {', '.join(MECHANISMS)}")
    if not mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms: listener {name} is {protocol.value} and needs one")
    return Listener(
        name,
        protocol,
        address,
        advertised,
        mechanisms,
        _passwords(name, mechanisms, overrides),
        own.integer("connections.max.reauth.ms"),
        own.integer("sasl.server.max.receive.size"),
        tls,
        limits=limits,
    )


def _refuse_idle(name: str, protocol: SecurityProtocol, overrides: Mapping[str, str]) -> None:
    for rest in overrides.keys() - set(_CONNECTION_KEYS):
        if (rest in _TLS_KEYS and not protocol.has_tls) or (rest not in _TLS_KEYS and not protocol.has_sasl):
            without = "TLS" if rest in _TLS_KEYS else "SASL"
            raise ConfigError(f"{_PREFIX}{name.lower()}.{rest}: {name} is {protocol.value}, without {without}")


def _tls(own: Settings, protocol: SecurityProtocol, overrides: Mapping[str, str]) -> TlsSettings:
    # As in Kafka: a setting for all listeners does not make those with SASL ask for certificates, too.
    client_auth = overrides.get(_CLIENT_AUTH, "none") if protocol.has_sasl else own.text(_CLIENT_AUTH)
    return TlsSettings(
        keystore_location=own.optional_text("ssl.keystore.location"),
        keystore_type=own.optional_text("ssl.keystore.type"),
        keystore_key=own.optional_text("ssl.keystore.key"),
        keystore_chain=own.optional_text("ssl.keystore.certificate.chain"),
        key_password=own.optional_text("ssl.key.password"),
        truststore_location=own.optional_text("ssl.truststore.location"),
        truststore_type=own.optional_text("ssl.truststore.type"),
        truststore_certificates=own.optional_text("ssl.truststore.certificates"),
        enabled_protocols=own.words("ssl.enabled.protocols"),
        cipher_suites=own.words("ssl.cipher.suites"),
        keystore_password=own.optional_text("ssl.keystore.password"),
        truststore_password=own.optional_text("ssl.truststore.password"),
        client_auth=client_auth,
    )


def _own_settings(settings: Settings, overrides: Mapping[str, str]) -> Settings:
    given = {rest: BROKER_CONFIG[rest].parse(value) for rest, value in overrides.items() if rest in _OVERRIDES}
    return Settings(settings.table, {**settings.values, **given})


def _passwords(name: str, mechanisms: tuple[str, ...], overrides: Mapping[str, str]) -> dict[str, str]:
    passwords: dict[str, str] = {}
    lines = {rest.removesuffix(f".{_JAAS}").upper(): text for rest, text in overrides.items() if rest.endswith(_JAAS)}
    for mechanism, text in lines.items():
        key = f"{_PREFIX}{name.lower()}.{mechanism.lower()}.{_JAAS}"
        if mechanism not in mechanisms:
            raise ConfigError(f"{key}: {mechanism} is not among the mechanisms of {name}: {', '.join(mechanisms)}")
        line = parse_jaas(text, key=key)
        if line.family != mechanism.partition("-")[0]:
            raise ConfigError(f"{key}: the login module is one of {line.family}")
        passwords |= line.users
    if PLAIN in mechanisms and not passwords:
        key = f"{_PREFIX}{name.lower()}.plain.{_JAAS}"
        raise ConfigError(f'{key}: PLAIN needs users there: PlainLoginModule required user_NAME="PASSWORD";')
    if any(not password for password in passwords.values()):
        raise ConfigError(f"{_PREFIX}{name.lower()}.plain.{_JAAS}: a user has an empty password")
    return passwords


def exposed(listener: Listener) -> str | None:
    """A warning about a listener that others can reach, with the settings to look at."""
    tls = listener.tls
    if listener.address.is_loopback or (tls is not None and (listener.mechanisms or tls.client_auth == "required")):
        return None
    if tls is not None:
        return f"listener {listener.name} on {listener.address} lets in everybody who can reach it: see ssl.client.auth"
    if not listener.protocol.has_sasl:
        return (
            f"listener {listener.name} on {listener.address} lets in everybody who can reach it, and anybody on the "
            "way can read along: see listener.security.protocol.map and sasl.enabled.mechanisms"
        )
    return f"listener {listener.name} on {listener.address} is not encrypted: anybody on the way can read along"
