"""Settings of the connection to ZooKeeper, and what kazoo's results mean."""

from __future__ import annotations

import sys

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
        tls_ca="ca.pem",
        tls_certificate="own.pem",
        tls_key="own.pem",
        checks_hostname=False,
    )
    assert (config.hosts, config.chroot) == ("zk1:2181,[::1]:2182", "/oncelog/orders")
    assert ZooKeeperConfig("zk1:2181").chroot == ZooKeeperConfig("zk1:2181/").chroot == ""
    assert "secret" not in repr(config)


@pytest.mark.parametrize("connect", ["zk1", "zk1:port/oncelog", "zk1:2181,,zk2:2181", "/oncelog"])
def test_an_address_that_is_none_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect: "):
        zookeeper_config(BROKER_CONFIG.parse({"zookeeper.connect": connect}))


def test_acls_need_somebody_to_whom_nodes_belong() -> None:
    given = {"zookeeper.connect": CONNECT, "zookeeper.set.acl": "true"}
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl: .* set oncelog\.zookeeper\.digest"):
        zookeeper_config(BROKER_CONFIG.parse(given))
    for key, value in (("oncelog.zookeeper.digest", "a:b"), ("zookeeper.ssl.keystore.location", "own.pem")):
        config = zookeeper_config(BROKER_CONFIG.parse({**given, key: value}))
        assert config is not None
        assert config.set_acl


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
