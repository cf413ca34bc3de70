"""Where clients are accepted and how: the listeners of the settings.

A listener is `NAME://HOST:PORT`, or just `HOST:PORT`. Its protocol is its name, or what
`listener.security.protocol.map` says. Settings that begin with `listener.name.NAME.` are for it alone. Security
settings that are incomplete are refused: a broker must not start with less security than its operator believes.
"""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Final

from oncelog.core.address import ALL_ADDRESSES, LOOPBACK, Address, parse_address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import INT_MAX, ConfigError, Settings, did_you_mean
from oncelog.core.dataclass import dataclass
from oncelog.core.tls_config import NAME_CHECK
from oncelog.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from oncelog.server.connection_limits import ListenerLimits

if TYPE_CHECKING:
    from oncelog.protocol.messages.broker_registration import Listener as Endpoint
    from oncelog.security.oauthbearer import TokenRules
    from oncelog.security.principal_mapping import PrincipalMapping
    from oncelog.tls import TlsSettings

PREFIX: Final = "listener.name."
JAAS: Final = "sasl.jaas.config"
CONTROLLER: Final = "CONTROLLER"
"""The name of the controllers' listener, unless it has another one."""
REAUTH: Final = "connections.max.reauth.ms"
_OF_MECHANISM: Final = rf"(?P<mechanism>[a-z0-9-]+)\.(?P<key>{re.escape(JAAS)}|{re.escape(REAUTH)})"
_CONNECTION_KEYS: Final = ("max.connections", "max.connection.creation.rate")
_OAUTH_KEYS: Final = tuple(key.name for key in BROKER_CONFIG if "oauthbearer" in key.name)
_SASL_KEYS: Final = (
    *("sasl.enabled.mechanisms", REAUTH, "sasl.server.max.receive.size"),
    *_OAUTH_KEYS,
)
_HANDLER: Final = "oauthbearer.sasl.server.callback.handler.class"
_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_ANY: Final = "*"
_CLIENT_AUTH: Final = "ssl.client.auth"
_NAME_CHECK: Final = NAME_CHECK.name
"""It is about connections to other nodes, and common in files of brokers that have none."""
_TLS_KEYS: Final = tuple(key.name for key in BROKER_CONFIG if key.name.startswith("ssl.") and key.name != _NAME_CHECK)
_OVERRIDES: Final = (*_SASL_KEYS, *_TLS_KEYS, *_CONNECTION_KEYS, _NAME_CHECK)


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

    @property
    def number(self) -> int:
        """The number that stands for it in metadata records."""
        return ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL").index(self.value)


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    rules: TokenRules
    keys_url: str
    """Empty: tokens have no signature, which somebody has asked for."""
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int


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
    reauth_ms: Mapping[str, int] = field(default_factory=dict)
    """By mechanism: after what time to log in again, 0 for never."""
    login_max_bytes: int = 0
    tls: TlsSettings | None = None
    mapping: PrincipalMapping | None = None
    """For users that are known by their certificate."""
    limits: ListenerLimits = field(default_factory=ListenerLimits)
    oauth: OAuthSettings | None = None

    def advertised_at(self, bound: Address) -> Address:
        """The address that others are told, where the listener is bound to this one."""
        address = self.advertised or bound
        return Address(address.host, address.port or bound.port)

    def endpoint(self, advertised: Address) -> Endpoint:
        """The listener as it is registered. Raises ConfigError."""
        from oncelog.protocol.messages.broker_registration import Listener as Endpoint

        if advertised.host in ALL_ADDRESSES:
            raise ConfigError(
                f"advertised.listeners: other nodes cannot connect to {advertised}; name the address of listener "
                f"{self.name}"
            )
        return Endpoint(
            name=self.name, host=advertised.host, port=advertised.port, security_protocol=self.protocol.number
        )


def parse_listeners(settings: Settings) -> list[Listener]:
    """Raises ConfigError for the first thing that is wrong."""
    bound = dict(_addresses(settings.text("listeners"), "listeners"))
    for name in _controller_names(settings):
        # A folder of Kafka's may have been a controller's too. There is none here.
        bound.pop(name, None)
    if not bound:
        raise ConfigError("listeners: there is none for clients")
    return _listeners(settings, bound)


def listener_of_controller(settings: Settings) -> Listener:
    """The only one of `process.roles=controller`. Raises ConfigError."""
    names = _controller_names(settings) or [CONTROLLER]
    text = str(settings.values.get("listeners") or settings.text("listeners").rpartition("://")[2])
    # An address alone is that of the listener that brokers look for, and never one with less security.
    bound = dict(_addresses(text if "://" in text else f"{names[0]}://{text}", "listeners"))
    if len(bound) != 1:
        raise ConfigError("listeners: process.roles=controller has one listener, for brokers and controllers")
    for name in bound.keys() - set(names):
        raise ConfigError(f"listeners: {name} is not among controller.listener.names: {', '.join(names)}")
    return _listeners(settings, bound)[0]


def _listeners(settings: Settings, bound: Mapping[str, Address]) -> list[Listener]:
    _check_ports(bound)
    advertised = _advertised(settings, bound)
    protocols = _protocols(settings)
    overrides = _overrides(settings, bound)
    listeners = [
        _listener(settings, name, address, protocols, overrides.get(name, {}), advertised.get(name))
        for name, address in bound.items()
    ]
    if settings.get("sasl.enabled.mechanisms") and not any(listener.protocol.has_sasl for listener in listeners):
        raise ConfigError("sasl.enabled.mechanisms: no listener is SASL_PLAINTEXT or SASL_SSL")
    if not any(listener.oauth for listener in listeners):
        for key in settings.values.keys() & set(_OAUTH_KEYS):
            raise ConfigError(f"{key}: no listener has OAUTHBEARER")
    reaches_by_tls = any(
        protocols.get(name, SecurityProtocol.PLAINTEXT).has_tls for name in _controller_names(settings)
    )
    if metrics_tls(settings) is None and not reaches_by_tls and not any(one.protocol.has_tls for one in listeners):
        for key in settings.values.keys() & set(_TLS_KEYS):
            raise ConfigError(f"{key}: no listener is SSL or SASL_SSL")
    return listeners


def _check_ports(bound: Mapping[str, Address]) -> None:
    """The system may bind both of two listeners, and then it is left to chance by which one a client comes in."""
    by_port: dict[int, list[str]] = {}
    for name, address in bound.items():
        if address.port:
            by_port.setdefault(address.port, []).append(name)
    for port, names in by_port.items():
        versions = [_ip_version(bound[name].host) for name in names]
        if len(names) > 1 and sorted(versions) != [4, 6]:
            raise ConfigError(
                f"listeners: {' and '.join(names)} have port {port}; each needs one of its own, unless one has an "
                "address of IPv4 and the other one of IPv6"
            )


def _ip_version(host: str) -> int:
    """0 for a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _controller_names(settings: Settings) -> list[str]:
    text = settings.optional_text("controller.listener.names") or ""
    return [name.strip().upper() for name in text.split(",") if name.strip()]


def between_brokers(listeners: list[Listener], settings: Settings) -> Listener:
    """The listener by which the brokers of a cluster reach each other. Raises ConfigError."""
    keys = ("inter.broker.listener.name", "security.inter.broker.protocol")
    given = [(key, str(settings.values[key]).upper()) for key in keys if settings.values.get(key)]
    if len(given) > 1:
        raise ConfigError(f"{keys[0]} and {keys[1]} are both given: one of them is enough")
    by_name = {listener.name: listener for listener in listeners}
    for key, name in given:
        if name not in by_name:
            raise ConfigError(f"{key}: {name} is not among the listeners")
        return by_name[name]
    plain = [listener for listener in listeners if listener.protocol is SecurityProtocol.PLAINTEXT]
    return by_name.get(SecurityProtocol.PLAINTEXT.value) or [*plain, *listeners][0]


def of_controllers(settings: Settings) -> tuple[str, SecurityProtocol]:
    """Name and protocol of the controllers' listener. Raises ConfigError."""
    name = next(iter(_controller_names(settings)), CONTROLLER)
    protocol = _protocols(settings).get(name)
    if protocol is None:
        raise ConfigError(f"controller.listener.names: {_unmapped(name)}")
    return name, protocol


def _addresses(text: str, key: str) -> Iterator[tuple[str, Address]]:
    seen = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, rest = part.rpartition("://")
        name = name.upper() if separator else SecurityProtocol.PLAINTEXT.value
        if name in seen:
            raise ConfigError(f"{key}: there are two listeners with the name {name}; each needs one of its own")
        seen.add(name)
        yield name, address_of(key, rest)


def address_of(key: str, text: str) -> Address:
    """Raises ConfigError with the name of the setting."""
    try:
        return parse_address(text, default_host=LOOPBACK)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _advertised(settings: Settings, bound: Mapping[str, Address]) -> dict[str, Address]:
    text = settings.optional_text("advertised.listeners")
    if not text:
        return {}
    if "://" not in text and "," not in text and len(bound) == 1:
        only = address_of("advertised.listeners", text)
        _check_routable(next(iter(bound)), only)
        return dict.fromkeys(bound, only)
    advertised = dict(_addresses(text, "advertised.listeners"))
    for name, address in advertised.items():
        _check_routable(name, address)
    unknown = advertised.keys() - bound.keys()
    if unknown:
        raise ConfigError(f"advertised.listeners: {', '.join(sorted(unknown))} is not among the listeners")
    return advertised


def _check_routable(name: str, address: Address) -> None:
    if address.host in ALL_ADDRESSES:
        raise ConfigError(
            f"advertised.listeners: clients cannot connect to {address}; name an address of listener {name} that they "
            "can reach, or leave it out to tell each client the address that it came by"
        )


def _protocols(settings: Settings) -> dict[str, SecurityProtocol]:
    found = {protocol.value: protocol for protocol in SecurityProtocol}
    text = settings.optional_text("listener.security.protocol.map") or ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (word.strip().upper() for word in part.partition(":"))
        if not colon or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"listener.security.protocol.map: {part!r} is not NAME:PROTOCOL with one of {known}")
        found[name] = SecurityProtocol[protocol]
    if not text and not any(found[name].has_tls or found[name].has_sasl for name in _named(settings) & found.keys()):
        # As in Kafka: where nothing is said about security, controllers have none.
        for name in _controller_names(settings) or [CONTROLLER]:
            found.setdefault(name, SecurityProtocol.PLAINTEXT)
    return found


def _named(settings: Settings) -> set[str]:
    """Listeners of this node and of controllers."""
    return {name for name, _ in _addresses(settings.text("listeners"), "listeners")} | {*_controller_names(settings)}


def _unmapped(name: str) -> str:
    return f"the protocol of {name} is not in listener.security.protocol.map"


def _overrides(settings: Settings, bound: Mapping[str, Address]) -> dict[str, dict[str, str]]:
    """Settings of single listeners, by listener."""
    found: dict[str, dict[str, str]] = {}
    for key, value in settings.values.items():
        if not key.startswith(PREFIX):
            continue
        name, dot, rest = key.removeprefix(PREFIX).partition(".")
        if name.upper() in _controller_names(settings) and name.upper() not in bound:
            continue
        if not dot or name.upper() not in bound:
            raise ConfigError(f"{key}: there is no listener {name.upper()}")
        if rest == _HANDLER and value not in _HANDLERS:
            raise ConfigError(f"{key}: no class is loaded; {_HANDLERS[0]} stands for what is done here")
        if rest not in (*_OVERRIDES, _HANDLER) and not re.fullmatch(_OF_MECHANISM, rest):
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
        raise ConfigError(f"listeners: {_unmapped(name)}")
    _refuse_idle(name, protocol, overrides)
    own = own_settings(settings, overrides)
    given = [own.integer(key) if key in overrides else INT_MAX for key in _CONNECTION_KEYS]
    limits = ListenerLimits(*given)
    tls = _tls(own, protocol, overrides) if protocol.has_tls else None
    if not protocol.has_sasl:
        mapping = None if tls is None else _mapping(own.text("ssl.principal.mapping.rules"))
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
        _reauth_ms(own, name, mechanisms, overrides),
        own.integer("sasl.server.max.receive.size"),
        tls,
        limits=limits,
        oauth=_oauth(own, name) if OAUTHBEARER in mechanisms else None,
    )


def _oauth(own: Settings, name: str) -> OAuthSettings:
    """Nothing is taken for granted: what is not to be checked has to be said."""
    if importlib.util.find_spec("jwt") is None or importlib.util.find_spec("cryptography") is None:
        raise ConfigError("sasl.enabled.mechanisms: OAUTHBEARER takes: pip install 'oncelog[security]'")
    url = own.optional_text("sasl.oauthbearer.jwks.endpoint.url")
    is_unsecured = own.boolean("oncelog.oauthbearer.unsecured.enable")
    if bool(url) == is_unsecured:
        problem = "both are given" if url else f"listener {name} has OAUTHBEARER and needs the keys of its tokens"
        text = "oncelog.oauthbearer.unsecured.enable takes tokens without signature"
        raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url: {problem}; {text}")
    audiences = own.words("sasl.oauthbearer.expected.audience")
    issuer = own.optional_text("sasl.oauthbearer.expected.issuer")
    for key, given in (("audience", audiences), ("issuer", issuer)):
        if not given and not is_unsecured:
            text = f"listener {name} has OAUTHBEARER and needs one; * stands for any"
            raise ConfigError(f"sasl.oauthbearer.expected.{key}: {text}")
    from oncelog.security.oauthbearer import TokenRules

    rules = TokenRules(
        () if _ANY in audiences else audiences,
        None if issuer == _ANY else issuer,
        own.integer("sasl.oauthbearer.clock.skew.seconds"),
        own.text("sasl.oauthbearer.sub.claim.name"),
    )
    return OAuthSettings(
        rules,
        url or "",
        own.integer("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        own.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        own.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def _refuse_idle(name: str, protocol: SecurityProtocol, overrides: Mapping[str, str]) -> None:
    for rest in overrides.keys() - set(_CONNECTION_KEYS):
        if rest == _NAME_CHECK:
            continue
        if (rest in _TLS_KEYS and not protocol.has_tls) or (rest not in _TLS_KEYS and not protocol.has_sasl):
            without = "TLS" if rest in _TLS_KEYS else "SASL"
            raise ConfigError(f"{PREFIX}{name.lower()}.{rest}: {name} is {protocol.value}, without {without}")


def _tls(own: Settings, protocol: SecurityProtocol, overrides: Mapping[str, str]) -> TlsSettings:
    from oncelog.tls import TlsSettings

    # As in Kafka: a setting for all listeners does not make those with SASL ask for certificates, too.
    client_auth = overrides.get(_CLIENT_AUTH, "none") if protocol.has_sasl else own.text(_CLIENT_AUTH)
    return own.bind(TlsSettings, client_auth=client_auth)


def _mapping(rules: str) -> PrincipalMapping:
    from oncelog.security.principal_mapping import PrincipalMapping

    return PrincipalMapping(rules)


def metrics_tls(settings: Settings) -> TlsSettings | None:
    """TLS settings of the port for metrics, which are those of all listeners; None if it has no TLS."""
    if not settings.boolean("oncelog.metrics.tls.enable"):
        return None
    if not settings.integer("oncelog.metrics.port"):
        raise ConfigError("oncelog.metrics.tls.enable: there is no oncelog.metrics.port")
    return _tls(settings, SecurityProtocol.SSL, {})


def overrides_of(settings: Settings, name: str) -> dict[str, str]:
    """What is set for the listener of that name, which may be one of other nodes."""
    prefix = f"{PREFIX}{name.lower()}."
    return {
        key.lower().removeprefix(prefix): str(value)
        for key, value in settings.values.items()
        if key.lower().startswith(prefix)
    }


def own_settings(settings: Settings, overrides: Mapping[str, str]) -> Settings:
    given = {rest: BROKER_CONFIG[rest].parse(value) for rest, value in overrides.items() if rest in _OVERRIDES}
    return Settings(settings.table, {**settings.values, **given})


def _reauth_ms(own: Settings, name: str, mechanisms: tuple[str, ...], overrides: Mapping[str, str]) -> dict[str, int]:
    found = dict.fromkeys(mechanisms, own.integer(REAUTH))
    for rest, text in overrides.items():
        match = re.fullmatch(_OF_MECHANISM, rest)
        if match is not None and match["key"] == REAUTH:
            mechanism = match["mechanism"].upper()
            _check_mechanism(f"{PREFIX}{name.lower()}.{rest}", name, mechanism, mechanisms)
            given = Settings(own.table, {**own.values, REAUTH: BROKER_CONFIG[REAUTH].parse(text)})
            found[mechanism] = given.integer(REAUTH)
    return found


def _check_mechanism(key: str, name: str, mechanism: str, mechanisms: tuple[str, ...]) -> None:
    if mechanism not in mechanisms:
        raise ConfigError(f"{key}: {mechanism} is not among the mechanisms of {name}: {', '.join(mechanisms)}")


def _passwords(name: str, mechanisms: tuple[str, ...], overrides: Mapping[str, str]) -> dict[str, str]:
    from oncelog.security.jaas import parse_jaas  # for listeners with SASL alone

    passwords: dict[str, str] = {}
    lines = {rest.removesuffix(f".{JAAS}").upper(): text for rest, text in overrides.items() if rest.endswith(JAAS)}
    for mechanism, text in lines.items():
        key = f"{PREFIX}{name.lower()}.{mechanism.lower()}.{JAAS}"
        _check_mechanism(key, name, mechanism, mechanisms)
        line = parse_jaas(text, key=key)
        if line.family != mechanism.partition("-")[0]:
            raise ConfigError(f"{key}: the login module is one of {line.family}")
        if mechanism == PLAIN:  # those of another line are not for this mechanism, as in Kafka
            passwords = line.users
    if PLAIN in mechanisms and not passwords:
        key = f"{PREFIX}{name.lower()}.plain.{JAAS}"
        raise ConfigError(f'{key}: PLAIN needs users there: PlainLoginModule required user_NAME="PASSWORD";')
    if any(not password for password in passwords.values()):
        raise ConfigError(f"{PREFIX}{name.lower()}.plain.{JAAS}: a user has an empty password")
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
