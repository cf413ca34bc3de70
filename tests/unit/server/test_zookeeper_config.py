"""Settings of the connection to ZooKeeper, and what kazoo's results mean."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest
from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from oncelog.cluster.zookeeper import Reason
from oncelog.core.broker_config import BROKER_CONFIG, warnings_of
from oncelog.core.config import ConfigError
from oncelog.server.zookeeper_client import ZooKeeperClient, ZooKeeperConfig, refusal, zookeeper_config
from tests.waiting import wait_until

TLS = Path(__file__).resolve().parents[2] / "data" / "tls"
CONNECT = "zk1:2181,[::1]:2182/oncelog/orders"


def test_without_an_address_there_is_no_zookeeper() -> None:
    assert zookeeper_config(BROKER_CONFIG.defaults) is None


def test_settings() -> None:
    given = {
        "zookeeper.connect": CONNECT,
        "zookeeper.session.timeout.ms": "6000",
        "zookeeper.set.acl": "true",
        "oncelog.zookeeper.digest": "controller:secret",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": "own.pem",
        "zookeeper.ssl.truststore.location": "ca.pem",
        "zookeeper.ssl.endpoint.identification.algorithm": "",
    }
    config = zookeeper_config(BROKER_CONFIG.parse(given))
    assert config == ZooKeeperConfig(
        CONNECT,
        session_timeout_ms=6000,
        digest="controller:secret",
        set_acl=True,
        uses_tls=True,
        truststore="ca.pem",
        keystore="own.pem",
        checks_hostname=False,
    )
    assert (config.hosts, config.chroot) == ("zk1:2181,[::1]:2182", "/oncelog/orders")
    assert ZooKeeperConfig("zk1:2181").chroot == ZooKeeperConfig("zk1:2181/").chroot == ""
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    "connect",
    [
        *("zk1", "zk1:port/oncelog", "zk1:2181,,zk2:2181", "/oncelog"),
        # Only the first server would be used, and another path than by controllers with another first server.
        "zk1:2181/oncelog,zk2:2181/oncelog",
        *("zk1:2181//oncelog", "zk1:2181/oncelog/../orders"),
    ],
)
def test_an_address_that_is_none_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect: "):
        zookeeper_config(BROKER_CONFIG.parse({"zookeeper.connect": connect}))


def test_acls_need_somebody_to_whom_nodes_belong() -> None:
    given = {"zookeeper.connect": CONNECT, "zookeeper.set.acl": "true"}
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl: .* set oncelog\.zookeeper\.digest"):
        zookeeper_config(BROKER_CONFIG.parse(given))
    certificate = {"zookeeper.ssl.keystore.location": "own.pem"}
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl: "):
        zookeeper_config(BROKER_CONFIG.parse({**given, **certificate}))  # which nobody is shown without TLS
    for more in ({"oncelog.zookeeper.digest": "a:b"}, {**certificate, "zookeeper.ssl.client.enable": "true"}):
        config = zookeeper_config(BROKER_CONFIG.parse({**given, **more}))
        assert config is not None
        assert config.set_acl


@pytest.mark.parametrize("digest", ["secret", ":secret", "controller:"])
def test_credentials_that_are_none_are_refused_and_not_shown(digest: str) -> None:
    given = {"zookeeper.connect": CONNECT, "oncelog.zookeeper.digest": digest}
    with pytest.raises(ConfigError) as raised:
        zookeeper_config(BROKER_CONFIG.parse(given))
    assert str(raised.value) == "oncelog.zookeeper.digest: expected USER:PASSWORD"


def test_certificates_without_tls_are_told_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    given = {"zookeeper.connect": CONNECT, "zookeeper.ssl.truststore.location": "ca.pem"}
    zookeeper_config(BROKER_CONFIG.parse(given))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "zookeeper.ssl.truststore.location has no effect"
    ]
    caplog.clear()
    zookeeper_config(BROKER_CONFIG.parse({**given, "zookeeper.ssl.client.enable": "true"}))
    assert not caplog.records


@pytest.mark.parametrize(
    ("keystore", "password", "truststore", "problem"),
    [
        (
            None,
            None,
            "missing.pem",
            r"zookeeper\.ssl\.truststore\.location: .*missing\.pem cannot be read: No such file",
        ),
        (None, None, "../kafka/README.md", r"zookeeper\.ssl\.truststore"),
        ("missing.pem", None, "ca.pem", r"zookeeper\.ssl\.keystore\.location: .*missing\.pem cannot be read"),
        ("ca.pem", None, "ca.pem", r"zookeeper\.ssl\.keystore\.location: no key with its certificate"),
        ("locked.pem", None, "ca.pem", r"a key with a password needs zookeeper\.ssl\.keystore\.password"),
        ("locked.pem", "wrong", "ca.pem", r"zookeeper\.ssl\.keystore\.location: no key with its certificate"),
        ("broker.jks", None, "ca.pem", r"zookeeper\.ssl\.keystore\.password: .*broker\.jks is JKS and needs one"),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_told_at_the_start(
    keystore: str | None, password: str | None, truststore: str, problem: str
) -> None:
    """Nobody is asked for a password at the terminal, which kazoo alone would do with each connection."""
    config = ZooKeeperConfig(
        "127.0.0.1:2181",
        uses_tls=True,
        keystore=None if keystore is None else str(TLS / keystore),
        keystore_password=password,
        truststore=str(TLS / truststore),
    )
    with pytest.raises(ConfigError, match=problem):
        ZooKeeperClient(config, lambda _: None)


def test_why_there_is_no_connection_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """kazoo knows the numbers of errors alone: one that has none is nothing but "None" to it."""
    own = tmp_path / "own.pem"
    shutil.copy(TLS / "alice.pem", own)
    told = lambda name: any(name in message for message in caplog.messages)  # noqa: E731
    with socket.create_server(("127.0.0.1", 0)) as mute:
        connect = f"127.0.0.1:{mute.getsockname()[1]}"
        config = ZooKeeperConfig(
            connect, session_timeout_ms=300, uses_tls=True, truststore=str(TLS / "ca.pem"), keystore=str(own)
        )
        client = ZooKeeperClient(config, lambda call: call())
        client.start(Session())
        try:
            wait_until(lambda: told("timed out"))
            own.write_bytes(b"half of it")
            wait_until(lambda: told("zookeeper.ssl.keystore.location"))
        finally:
            client.close()
            wait_until(lambda: not any(each.name == "oncelog-zookeeper-close" for each in threading.enumerate()))
    assert not told("None")


class Session:
    def on_connected(self) -> None: ...

    def on_disconnected(self, reason: str) -> None: ...

    def on_refused(self, problem: str) -> None: ...


def test_settings_for_controllers_are_told_to_have_no_effect_elsewhere() -> None:
    given = {"zookeeper.connect": CONNECT}
    for roles, count in (("broker,controller", 1), ("broker", 1), ("controller", 0)):
        warnings = warnings_of(BROKER_CONFIG.parse({**given, "process.roles": roles}))
        assert len([text for text in warnings if "zookeeper.connect" in text]) == count


def test_without_kazoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ConfigError, match=r"pip install 'oncelog\[zookeeper\]'"):
        ZooKeeperClient(ZooKeeperConfig("127.0.0.1:2181"), lambda _: None)


@pytest.mark.parametrize(
    ("results", "position", "reason"),
    [
        ([BadVersionError(), RuntimeInconsistency()], 0, Reason.BAD_VERSION),
        ([RolledBackError(), NodeExistsError()], 1, Reason.NODE_EXISTS),
        ([RolledBackError(), NoNodeError(), RuntimeInconsistency()], 1, Reason.NO_NODE),
        ([RolledBackError(), NotEmptyError()], 1, Reason.OTHER),
        ([NoAuthError(), RuntimeInconsistency()], 0, Reason.DENIED),
        ([InvalidACLError(), RuntimeInconsistency()], 0, Reason.DENIED),
    ],
)
def test_a_multi_that_failed_is_found_out(results: list[Exception], position: int, reason: Reason) -> None:
    """kazoo returns errors as results, and raises none."""
    found = refusal(results)
    assert found is not None
    assert found[:2] == (position, reason)
    assert refusal(["/a", True]) is None
