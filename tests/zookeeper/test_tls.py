"""Controllers that reach ZooKeeper by TLS, and show a certificate of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oncelog.server.zookeeper_client import ZooKeeperConfig
from oncelog.testing.zookeeper import ZooKeeperEnsemble, free_ports
from tests.waiting import wait_until
from tests.zookeeper.nodes import log_nodes
from tests.zookeeper.test_one_server import SESSION_MS, wait_active

TLS = Path(__file__).resolve().parents[1] / "data" / "tls"


def test_a_controller_with_a_certificate_gets_in(tmp_path: Path) -> None:
    [port] = free_ports(1)
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(TLS / "broker.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(TLS / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
    }
    known = ZooKeeperConfig(
        f"127.0.0.1:{port}/oncelog",
        session_timeout_ms=SESSION_MS,
        uses_tls=True,
        tls_ca=str(TLS / "ca.pem"),
        tls_certificate=str(TLS / "alice.pem"),
        tls_key=str(TLS / "alice.pem"),
    )
    stranger = replace(known, tls_certificate=None, tls_key=None)
    with ZooKeeperEnsemble(tmp_path, 1, settings), log_nodes(known, stranger) as (node, other):
        other.start()
        node.start()
        wait_active(node)
        assert isinstance(node.append("1"), int)
        wait_until(lambda: node.retention == "1")
        assert not other.log.is_active
        assert other.follower.batches == []
