"""Controllers that reach ZooKeeper by TLS, and show a certificate of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from oncelog.cluster.zookeeper_nodes import CONTROLLER
from oncelog.server.zookeeper_client import ZooKeeperConfig
from oncelog.testing.zookeeper import ZooKeeperEnsemble, free_ports
from tests.waiting import wait_until
from tests.zookeeper.nodes import log_nodes
from tests.zookeeper.test_one_server import SESSION_MS, wait_active

TLS = Path(__file__).resolve().parents[1] / "data" / "tls"


@contextmanager
def secure_zookeeper(folder: Path, certificate: str = "broker.pem") -> Iterator[tuple[ZooKeeperEnsemble, str]]:
    """And the address of its port for TLS."""
    [port] = free_ports(1)
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(TLS / certificate),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(TLS / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
    }
    with ZooKeeperEnsemble(folder, 1, settings) as ensemble:
        yield ensemble, f"127.0.0.1:{port}"


def config_at(address: str) -> ZooKeeperConfig:
    return ZooKeeperConfig(
        f"{address}/oncelog",
        session_timeout_ms=SESSION_MS,
        uses_tls=True,
        truststore=str(TLS / "ca.pem"),
        keystore=str(TLS / "alice.pem"),
    )


def test_a_controller_with_a_certificate_gets_in(tmp_path: Path) -> None:
    with secure_zookeeper(tmp_path) as (_, address):
        known = config_at(address)
        with log_nodes(known, replace(known, keystore=None)) as (node, other):
            other.start()
            node.start()
            wait_active(node)
            assert isinstance(node.append("1"), int)
            wait_until(lambda: node.retention == "1")
            assert not other.log.is_active
            assert other.follower.batches == []


def test_what_is_wrong_with_tls_is_told_once_with_the_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    own = tmp_path / "own.pem"
    shutil.copy(TLS / "expired.pem", own)
    with secure_zookeeper(tmp_path) as (ensemble, address):
        known = config_at(address)
        wrong = [
            replace(known, keystore=None),
            replace(known, truststore=str(TLS / "stranger.pem")),
            replace(known, connect=f"{ensemble.connect}/oncelog"),
            replace(known, uses_tls=False),
            replace(known, keystore=str(own)),
        ]
        with log_nodes(*wrong) as nodes:
            for node in nodes:
                node.start()
            names = [
                "does not accept the certificate in zookeeper.ssl.keystore.location",
                "is not trusted by zookeeper.ssl.truststore.location",
                "has to be the one for TLS (secureClientPort)",
                "the port is for TLS (zookeeper.ssl.client.enable=true)",
            ]
            told = lambda: [record.message for record in caplog.records if record.levelname == "WARNING"]  # noqa: E731
            wait_until(lambda: all(any(name in message for message in told()) for name in names))
            # A certificate that was renewed is shown with the next connection.
            shutil.copy(TLS / "alice.pem", own)
            wait_active(nodes[-1])
            assert not any(node.faults or node.log.is_active for node in nodes[:-1])
        # A handshake with a server that has just started can take longer than a session on a busy machine.
        causes = [message for message in told() if "timed out" not in message]
        assert len(causes) == len(wrong), "each is told once, however often it is tried"
        assert f"ZooKeeper {address}: connected" in caplog.messages


def test_a_key_with_a_password(tmp_path: Path) -> None:
    with secure_zookeeper(tmp_path) as (ensemble, address):
        config = replace(config_at(address), keystore=str(TLS / "locked.pem"), keystore_password="secret", set_acl=True)
        with log_nodes(config) as (node,):
            node.start()
            wait_active(node)
            operator = KazooClient(ensemble.connect)
            operator.start(60)
            with pytest.raises(NoAuthError):
                operator.get(f"/oncelog{CONTROLLER}")
            operator.stop()
            operator.close()
            assert isinstance(node.append("1"), int)
