"""A real ZooKeeper server and kazoo: what the log relies on, and what the fake promises, is so."""

from __future__ import annotations

import socket
import struct

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE, make_digest_acl

from oncelog.cluster.zookeeper import Check, Create, Delete, Node, Reason, Refused, SetData
from oncelog.cluster.zookeeper_nodes import CONTROLLER, EPOCH
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.server.zookeeper_client import ZooKeeperClient, ZooKeeperConfig
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from tests.waiting import wait_until
from tests.zookeeper.nodes import LogNode, LoopThread, log_nodes

SESSION_MS = 9000
"""No session is to end because the machine is busy."""


def config_of(zookeeper: ZooKeeperEnsemble, chroot: str) -> ZooKeeperConfig:
    return ZooKeeperConfig(zookeeper.connect + chroot, session_timeout_ms=SESSION_MS)


def wait_active(*nodes: LogNode) -> LogNode:
    found: list[LogNode] = []
    wait_until(lambda: found.extend(node for node in nodes if node.log.is_active) or found)
    return found[0]


class States:
    """A `Session` that notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_connected(self) -> None:
        self.seen.append("connected")

    def on_disconnected(self, reason: str) -> None:
        self.seen.append(reason)

    def on_refused(self, problem: str) -> None:
        self.seen.append(problem)


def test_operations_answer_as_the_fake_does(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    thread = LoopThread()
    states = States()
    client = ZooKeeperClient(config_of(zookeeper, chroot), thread.loop.call_soon_threadsafe)
    try:
        thread.call(lambda: client.start(states))
        wait_until(lambda: states.seen == ["connected"])
        # The chroot has two levels, and is there.
        assert thread.wait_for(lambda: client.get("/a")) is None
        assert thread.wait_for(lambda: client.multi([Create("/a", b"1"), Create("/a/b", b"", True)])) is None
        assert thread.wait_for(lambda: client.get("/a")) == Node(b"1", 0, 0)
        assert thread.wait_for(lambda: client.children("/a")) == ["b"]
        assert thread.wait_for(lambda: client.children("/nothing")) is None
        ephemeral = thread.wait_for(lambda: client.get("/a/b"))
        assert isinstance(ephemeral, Node)
        assert ephemeral.owner == client.session_id != 0
        # A multi that fails raises nothing in kazoo. Its first cause is told, and nothing of it was done.
        fenced = thread.wait_for(lambda: client.multi([Check("/a", 7), Create("/c")]))
        assert isinstance(fenced, Refused)
        assert fenced[:2] == (0, Reason.BAD_VERSION)
        refused = thread.wait_for(lambda: client.multi([SetData("/a", b"2", 0), Create("/a")]))
        assert isinstance(refused, Refused)
        assert refused[:2] == (1, Reason.NODE_EXISTS)
        missing = thread.wait_for(lambda: client.multi([Check("/a", 0), Delete("/nothing"), Create("/c")]))
        assert isinstance(missing, Refused)
        assert missing[:2] == (1, Reason.NO_NODE)
        assert thread.wait_for(lambda: client.get("/a")) == Node(b"1", 0, 0)
        events: list[int] = []
        assert thread.wait_for(lambda: client.watch("/c", lambda: events.append(1))) is False
        assert thread.wait_for(lambda: client.watch("/a", lambda: events.append(2))) is True
        assert thread.wait_for(client.sync) is None
        assert thread.wait_for(lambda: client.multi([Create("/c"), Delete("/a/b"), Delete("/a")])) is None
        wait_until(lambda: sorted(events) == [1, 2])
        # It was asked for, and tickTime 500 allows it.
        assert client.session_timeout_ms == SESSION_MS
    finally:
        thread.call(client.close)
        thread.stop()


def test_a_node_that_is_watched_again_and_again_is_watched_once(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    """As a controller does with who is active, for months."""
    thread = LoopThread()
    states = States()
    events: list[int] = []

    class Watching:
        def look(self) -> None:
            events.append(1)

    watching = Watching()
    client = ZooKeeperClient(config_of(zookeeper, chroot), thread.loop.call_soon_threadsafe)
    try:
        thread.call(lambda: client.start(states))
        wait_until(lambda: states.seen == ["connected"])
        for _ in range(10):
            assert thread.wait_for(lambda: client.watch("/a", watching.look)) is False
        assert thread.wait_for(lambda: client.watch("/a", lambda: events.append(2))) is False
        assert thread.wait_for(lambda: client.multi([Create("/a")])) is None
        assert thread.wait_for(client.sync) is None
        wait_until(lambda: 2 in events)
        assert sorted(events) == [1, 2]
        # An event ends it. Whoever goes on watching is told of the next one.
        assert thread.wait_for(lambda: client.watch("/a", watching.look)) is True
        assert thread.wait_for(lambda: client.multi([Delete("/a")])) is None
        wait_until(lambda: sorted(events) == [1, 1, 2])
    finally:
        thread.call(client.close)
        thread.stop()


def test_the_session_time_is_what_the_server_has_agreed_to(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    thread = LoopThread()
    states = States()
    config = ZooKeeperConfig(zookeeper.connect + chroot, session_timeout_ms=30_000)
    client = ZooKeeperClient(config, thread.loop.call_soon_threadsafe)
    try:
        thread.call(lambda: client.start(states))
        wait_until(lambda: states.seen)
        assert client.session_timeout_ms == 10_000
    finally:
        thread.call(client.close)
        thread.stop()


def test_one_of_two_is_active_and_the_other_follows_and_takes_over(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    config = config_of(zookeeper, chroot)
    with log_nodes(config, config, config) as (first, second, late):
        first.start()
        wait_active(first)
        second.start()
        assert first.append("1") == 3
        wait_until(lambda: second.retention == "1")
        wait_until(lambda: second.log.leader == first.log.leader)
        refused = second.append("2")
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.NOT_CONTROLLER
        assert first.snapshot() is None
        first.append("3")
        first.close()
        assert wait_active(second).log.epoch == 2
        assert isinstance(second.append("4"), int)
        late.start(campaigns=False)
        wait_until(lambda: late.retention == "4")
        assert late.follower.snapshots == [(4, 1)]
        assert late.follower.image == second.follower.image


def test_a_controller_whose_node_is_deleted_is_elected_anew(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    operator = KazooClient(zookeeper.connect)
    operator.start(60)
    with log_nodes(config_of(zookeeper, chroot)) as (node,):
        node.start()
        wait_active(node)
        operator.delete(chroot + CONTROLLER)
        wait_until(lambda: node.log.epoch == 2 and node.log.is_active)
        assert [leader and leader.epoch for leader in node.follower.leaders] == [1, None, 2]
        assert isinstance(node.append("1"), int)
    operator.stop()


def test_the_chroot_is_closed_to_others(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    own = ZooKeeperConfig(
        zookeeper.connect + chroot, session_timeout_ms=SESSION_MS, digest="controller:secret", set_acl=True
    )
    stranger = KazooClient(zookeeper.connect)
    stranger.start(60)
    with log_nodes(own, config_of(zookeeper, chroot)) as (node, other):
        node.start()
        wait_active(node)
        assert isinstance(node.append("1"), int)
        with pytest.raises(NoAuthError):
            stranger.set(chroot + EPOCH, b"9")
        with pytest.raises(NoAuthError):
            stranger.delete(chroot + CONTROLLER)
        assert all(acl.perms == CREATOR_ALL_ACL[0].perms for acl in _acls(own, chroot))
        # One without the credentials neither reads nor becomes active, and is told why.
        other.start()
        wait_until(lambda: other.faults)
        assert other.faults[0].startswith("ZooKeeper does not let this controller in: NoAuthError")
        assert "oncelog.zookeeper.digest" in other.faults[0]
        assert other.follower.batches == []
        assert isinstance(node.append("2"), int)
    stranger.stop()


def test_levels_above_the_chroot_are_open_to_other_clusters(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    own = ZooKeeperConfig(
        f"{zookeeper.connect}{chroot}/all/own", session_timeout_ms=SESSION_MS, digest="controller:secret", set_acl=True
    )
    with log_nodes(own, config_of(zookeeper, f"{chroot}/all/other")) as (node, other):
        node.start()
        wait_active(node)
        other.start()
        wait_until(lambda: other.log.is_active or other.faults)
        assert other.faults == []


def test_what_is_older_than_the_acls_is_told_to_be_open(
    zookeeper: ZooKeeperEnsemble, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = ZooKeeperConfig(
        zookeeper.connect + chroot, session_timeout_ms=SESSION_MS, digest="controller:secret", set_acl=True
    )

    def told() -> list[str]:
        return [record.message for record in caplog.records if "everybody may change" in record.message]

    with log_nodes(config_of(zookeeper, chroot)) as (node,):
        node.start()
        wait_active(node)
    with log_nodes(own) as (node,):
        node.start()
        wait_active(node)
        wait_until(lambda: len(told()) == 2)
    assert f" {chroot} of ZooKeeper" in told()[0]
    assert f" {chroot}{EPOCH} of ZooKeeper" in told()[1]
    operator = KazooClient(zookeeper.connect, auth_data=[("digest", "controller:secret")])
    operator.start(60)
    for path in (chroot, chroot + EPOCH):
        operator.set_acls(path, CREATOR_ALL_ACL)
    operator.stop()
    operator.close()
    caplog.clear()
    with log_nodes(own) as (node,):
        node.start()
        wait_active(node)
        assert node.append("1") is not None
    assert told() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_answers_nonsense_ends_the_controller() -> None:
    """kazoo ends its thread then, and tells nobody: the controller would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with log_nodes(ZooKeeperConfig(f"{address}/oncelog", session_timeout_ms=SESSION_MS)) as (node,):
            node.start()
            other.settimeout(120)
            connection, _ = other.accept()
            with connection:
                connection.settimeout(120)
                connection.recv(1024)
                session = struct.pack(">iiqi16s?", 0, SESSION_MS, 1, 16, b"", False)
                connection.sendall(struct.pack(">i", len(session)) + session)
                connection.recv(1024)
                connection.sendall(b"\0\0\0\2no")
                wait_until(lambda: node.faults)
            assert node.faults[0].startswith(f"ZooKeeper at {address} gives an answer that cannot be understood")


@pytest.mark.parametrize("has_chroot", [True, False])
def test_acls_without_credentials_are_a_fault(zookeeper: ZooKeeperEnsemble, chroot: str, has_chroot: bool) -> None:
    connect = zookeeper.connect + (chroot if has_chroot else "")
    with log_nodes(ZooKeeperConfig(connect, session_timeout_ms=SESSION_MS, set_acl=True)) as (node,):
        node.start()
        wait_until(lambda: node.faults)
        assert "InvalidACLError; zookeeper.set.acl needs credentials" in node.faults[0]
        assert (f"make {chroot}" if has_chroot else f"write {EPOCH}") in node.faults[0]


def test_a_chroot_under_a_node_of_others(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    """Nothing may be made there, which is needed only until somebody else has made it."""
    operator = KazooClient(zookeeper.connect, auth_data=[("digest", "operator:secret")])
    operator.start(60)
    closed = [make_digest_acl("operator", "secret", all=True), *READ_ACL_UNSAFE]
    operator.ensure_path(chroot)
    operator.set_acls(chroot, closed)
    config = config_of(zookeeper, f"{chroot}/own")
    with log_nodes(config) as (node,):
        node.start()
        wait_until(lambda: node.faults)
        assert node.faults[0].startswith(f"ZooKeeper does not let this controller make {chroot}/own: NoAuthError")
    operator.create(f"{chroot}/own")
    with log_nodes(config) as (node,):
        node.start()
        wait_active(node)
    # Nor may anybody look.
    operator.set_acls(chroot, closed[:1])
    with log_nodes(config, config_of(zookeeper, f"{chroot}/other")) as (node, other):
        node.start()
        wait_active(node)
        other.start()
        wait_until(lambda: other.faults)
        assert other.faults[0].startswith(f"ZooKeeper does not let this controller make {chroot}/other: NoAuthError")
    operator.set_acls(f"{chroot}/own{EPOCH}", closed)
    with log_nodes(config) as (node,):
        node.start()
        wait_until(lambda: node.faults)
        assert node.faults[0].startswith(f"this controller may not write {EPOCH}: NoAuthError")
    operator.stop()
    operator.close()


def _acls(config: ZooKeeperConfig, chroot: str) -> list[object]:
    client = KazooClient(config.hosts, auth_data=[("digest", config.digest)])
    client.start(60)
    acls = client.get_acls(chroot)[0]
    client.stop()
    client.close()
    return list(acls)
