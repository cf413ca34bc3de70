"""The brokers that conformance tests run on: Oncelog and Apache Kafka, behind one interface.

`get(kind, transaction_version, profile)` starts a broker at its first use and shares it until `stop_all()`, so that a
test session starts each combination once. Tests that stop or kill a broker make their own with `new(...)`.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from oncelog.janitor import janitor
from peers.kafka.jars import QUICK_OPTIONS
from peers.kafka.kafka import KafkaServer, free_port, kafka_available
from tests.conformance.wire import Wire
from tests.oncelog_node import OncelogNode
from tests.unit.security.tokens import AUDIENCE, ISSUER, Authority

KINDS: Final = ("oncelog", "kafka")
READY_TIMEOUT_S: Final = 300.0

COMMON: Final[dict[str, str]] = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    # Tests write records of long ago.
    "log.retention.ms": "-1",
    # A node whose heartbeat comes late on a busy machine would be fenced by its own controller, and its partitions come
    # back with other epochs than those of the transcripts. Nobody waits for the end of a session.
    "broker.session.timeout.ms": "600000",
}
ONLY_ONCELOG: Final = {
    # Tests send what coordinators send, and Kafka takes it from everybody as long as it has no ACLs.
    "oncelog.cluster.action.enable": "true",
}
USERS: Final = tuple(f"user{number}" for number in range(40))
PASSWORD: Final = "secret"
PLAIN_USERS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    + ";"
)
TLS: Final = Path(__file__).parents[1] / "data" / "tls"
TOKEN_LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
TOKEN_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PROFILES: Final[dict[str, dict[str, str]]] = {
    "default": {},
    "expiring": {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    },
    "secured": {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Who comes by the listener without SASL. On Apache Kafka that is the broker itself, too.
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
        # Stores that keytool made.
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": str(TLS / "broker.jks"),
        "ssl.keystore.password": "storepw",
        "ssl.key.password": "keypass",
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": str(TLS / "trust.jks"),
        "ssl.truststore.password": "storepw",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": TOKEN_LOGIN,
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": TOKEN_HANDLER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=(.*?),.*$/$2-$1/U,DEFAULT",
        "connection.failed.authentication.delay.ms": "1",
    },
    # Apache Kafka looks at every record anyway, and does not know the key.
    "validating": {"oncelog.record.validation": "records"},
}
KEYS_OF_TOKENS: Final = "sasl.oauthbearer.jwks.endpoint.url"
PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
SECURED: Final = "secured"
"""This profile has listeners with SASL, with SASL and TLS, and with certificates of clients."""


class Broker(Protocol):
    """What a test may do with a broker. `data_dir` is its `log.dirs`."""

    kind: str
    data_dir: Path
    sasl_servers: str | None
    tls_servers: str | None
    """With SASL, too."""
    certificate_servers: str | None

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


def servers_of(secured: Mapping[str, int]) -> list[str | None]:
    """The addresses of the listeners of `PROTOCOLS`."""
    return [f"127.0.0.1:{secured[protocol]}" if protocol in secured else None for protocol in PROTOCOLS]


def files_for_java(url: str | None) -> list[str]:
    """Java reads tokens, and the keys of tokens, only from where it is told to by properties of its own."""
    if url is None:
        return []
    prefix = "org.apache.kafka.sasl.oauthbearer.allowed"
    return [f"-D{prefix}.urls={url}", f"-D{prefix}.files={url.removeprefix('file://')}"]


@functools.cache
def authority() -> Authority:
    """Who signs the tokens that brokers of the profile `secured` take."""
    return Authority()


class KafkaBroker(KafkaServer):
    kind = "kafka"

    def __init__(
        self, folder: Path, transaction_version: int, settings: Mapping[str, str], secured: Mapping[str, int]
    ) -> None:
        self.sasl_servers, self.tls_servers, self.certificate_servers = servers_of(secured)
        super().__init__(
            folder,
            transaction_version=transaction_version,
            properties=settings,
            more_listeners=secured,
            java_options=(*QUICK_OPTIONS, *files_for_java(settings.get(KEYS_OF_TOKENS))),
        )


class OncelogBroker(OncelogNode):
    """It keeps its port over restarts, so that clients find it again."""

    kind = "oncelog"

    def __init__(
        self, folder: Path, transaction_version: int, settings: Mapping[str, str], secured: Mapping[str, int]
    ) -> None:
        self.sasl_servers, self.tls_servers, self.certificate_servers = servers_of(secured)
        self._secured = secured
        own = {"transaction.version": str(transaction_version), **ONLY_ONCELOG}
        super().__init__(folder / "data", {**own, **settings})

    def start(self) -> None:
        others = [f"{protocol}://127.0.0.1:{port}" for protocol, port in self._secured.items()]
        listen = ["--listen", ",".join([f"127.0.0.1:{self.port}", *others])] if others else []
        super().start(extra_arguments=listen)


def unavailable(kind: str) -> str | None:
    """Why this kind of broker cannot run here, or None."""
    return kafka_available() if kind == "kafka" else None


def new(
    kind: str,
    folder: Path,
    *,
    transaction_version: int = 2,
    settings: Mapping[str, str] | None = None,
    has_sasl: bool = False,
) -> KafkaBroker | OncelogBroker:
    """A broker that is not started yet, with the settings that all conformance tests use and these."""
    folder.mkdir(parents=True, exist_ok=True)
    made = KafkaBroker if kind == "kafka" else OncelogBroker
    secured = {protocol: free_port() for protocol in PROTOCOLS if has_sasl}
    return made(folder, transaction_version, {**COMMON, **(settings or {})}, secured)


_shared: dict[tuple[str, int, str], KafkaBroker | OncelogBroker] = {}
_folders: list[Path] = []


def get(kind: str, transaction_version: int = 2, profile: str = "default") -> KafkaBroker | OncelogBroker:
    """The running broker of this kind, started now if it is the first to ask."""
    key = (kind, transaction_version, profile)
    if key not in _shared:
        folder = Path(tempfile.mkdtemp(prefix=f"oncelog-conformance-{kind}-"))
        janitor.take("folder", str(folder))
        _folders.append(folder)
        settings, has_sasl = PROFILES[profile], profile == SECURED
        if has_sasl:
            keys = folder / "keys.json"
            keys.write_bytes(authority().key_set())
            settings = {**settings, KEYS_OF_TOKENS: keys.as_uri()}
        broker = new(kind, folder, transaction_version=transaction_version, settings=settings, has_sasl=has_sasl)
        broker.start()
        _shared[key] = broker
        warm_up(broker.bootstrap_servers)
    return _shared[key]


def warm_up(bootstrap_servers: str) -> None:
    """Make the coordinators load: Apache Kafka creates their topics when a client first looks for one."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Wire(bootstrap_servers) as wire:
        while time.monotonic() < deadline:
            found = [wire.call("find_coordinator", 2, key="warm-up", key_type=kind) for kind in (0, 1)]
            # One name for each of the four partitions of either topic.
            answers = [
                wire.call("init_producer_id", 2, transactional_id=name, transaction_timeout=1000) for name in "abcd"
            ]
            answers += [wire.call("offset_fetch", 5, group_id=name, topics=None) for name in "abcd"]
            if all(answer["error_code"] == 0 for answer in found + answers):
                return
            time.sleep(0.05)
    raise RuntimeError(f"the coordinators of {bootstrap_servers} do not get ready")


def stop_all() -> None:
    for broker in _shared.values():
        # A clean stop is part of what Oncelog has to show; Apache Kafka's takes seconds, and its folder goes anyway.
        if broker.kind == "kafka":
            broker.kill()
        else:
            broker.stop()
    _shared.clear()
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
