"""Lost connections, lost answers and ended sessions, with a real server and kazoo."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from kazoo.client import KazooClient

from oncelog.cluster.zookeeper import Create, Lost
from oncelog.cluster.zookeeper_nodes import CONTROLLER, LOG
from oncelog.controller.metadata_batches import read_batches
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.cluster_metadata import ConfigRecord
from oncelog.server.zookeeper_client import ZooKeeperClient, ZooKeeperConfig
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from tests.waiting import wait_until
from tests.zookeeper.nodes import LogNode, LoopThread, log_nodes
from tests.zookeeper.proxy import Proxy
from tests.zookeeper.test_one_server import SESSION_MS, States, config_of, wait_active

IS_LONG = os.environ.get("ONCELOG_CLUSTER_TESTS") == "all"
TORTURE_S = 60 if IS_LONG else 5
SHORT_SESSION_MS = 3000
"""Where sessions are to end."""
GIVE_UP_S = 180


@contextmanager
def proxies(zookeeper: ZooKeeperEnsemble, count: int) -> Iterator[list[Proxy]]:
    """Each to another server of the ensemble, if there are several."""
    servers = zookeeper.servers
    made = [Proxy(servers[number % len(servers)].port) for number in range(count)]
    try:
        yield made
    finally:
        for proxy in made:
            proxy.close()


def through(proxy: Proxy, chroot: str, session_ms: int = SESSION_MS) -> ZooKeeperConfig:
    return ZooKeeperConfig(proxy.address + chroot, session_timeout_ms=session_ms)


def test_a_lost_answer_is_told_as_such_and_not_repeated(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    thread, states, threads = LoopThread(), States(), set[int]()
    with proxies(zookeeper, 1) as (proxy,):
        client = ZooKeeperClient(through(proxy, chroot), thread.loop.call_soon_threadsafe)
        try:
            thread.call(lambda: client.start(states))
            wait_until(lambda: states.seen == ["connected"])
            thread.wait_for(lambda: client.watch("/b", lambda: threads.add(threading.get_ident())))
            proxy.is_answer_lost = True
            result: Future[object] = Future()
            thread.loop.call_soon_threadsafe(lambda: client.multi([Create("/a")]).then(result.set_result))
            wait_until(lambda: _exists(zookeeper, chroot + "/a"))
            proxy.cut()
            assert isinstance(result.result(180), Lost)
            proxy.heal()
            wait_until(lambda: len(states.seen) > 1 and states.seen[-1] == "connected")
            assert states.seen[1] == "the connection is lost"
            # The watch was dropped with the connection and called once, on the loop: look again.
            wait_until(lambda: threads)
            assert threads == {thread.call(threading.get_ident)}
        finally:
            thread.call(client.close)
            thread.stop()


def _exists(zookeeper: ZooKeeperEnsemble, path: str) -> bool:
    client = KazooClient(zookeeper.connect)
    client.start(60)
    try:
        return client.exists(path) is not None
    finally:
        client.stop()
        client.close()


def test_a_connection_lost_while_the_chroot_is_made_is_no_refusal(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    """Also where this process was too busy to hear of it before the next connection was there."""
    states, calls = States(), deque[Callable[[], None]]()

    def work() -> None:
        while calls:
            calls.popleft()()

    with proxies(zookeeper, 1) as (proxy,):
        client = ZooKeeperClient(through(proxy, chroot), calls.append)
        try:
            client.start(states)
            wait_until(lambda: calls)
            proxy.is_answer_lost = True
            work()
            proxy.heal()
            proxy.cut()
            # The node has no answer, the connection is lost, there is another one.
            wait_until(lambda: len(calls) >= 3)
            work()
            wait_until(lambda: work() or "connected" in states.seen)
        finally:
            client.close()
    assert states.seen == ["the connection is lost", "connected"]


def test_an_append_whose_answer_was_lost_is_confirmed_with_the_next_connection(
    zookeeper: ZooKeeperEnsemble, chroot: str
) -> None:
    with proxies(zookeeper, 1) as (proxy,), log_nodes(through(proxy, chroot), config_of(zookeeper, chroot)) as nodes:
        first, second = nodes
        first.start()
        wait_active(first)
        second.start(campaigns=False)
        assert first.append("0") == 3
        proxy.is_answer_lost = True
        promise = first.begin_append("1")
        wait_until(lambda: second.retention == "1")
        proxy.cut()
        wait_until(lambda: not first.log.is_active)
        assert not promise.done()
        proxy.heal()
        assert promise.result(180) == 4
        # Its own node /controller is still there, and does not keep it out.
        wait_until(lambda: first.log.is_active)
        assert first.log.epoch == 2
        assert isinstance(first.append("2"), int)
        wait_until(lambda: second.retention == "2")


def test_a_controller_that_is_cut_off_stops_acting_before_it_knows_of_its_end(
    zookeeper: ZooKeeperEnsemble, chroot: str
) -> None:
    with (
        proxies(zookeeper, 1) as (proxy,),
        log_nodes(through(proxy, chroot, SHORT_SESSION_MS), config_of(zookeeper, chroot)) as nodes,
    ):
        first, second = nodes
        first.start()
        wait_active(first)
        second.start()
        # Silence, not an end: nothing is heard of the server any more.
        proxy.is_answer_lost = True
        wait_until(lambda: not first.log.is_active)
        proxy.refuse()
        refused = first.append("zombie")
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.NOT_CONTROLLER
        wait_until(lambda: second.log.is_active)
        assert isinstance(second.append("1"), int)
        proxy.heal()
        wait_until(lambda: first.retention == "1")
        wait_until(lambda: first.log.leader == second.log.leader)


class Load:
    """Appends on whoever is active, and what was confirmed."""

    def __init__(self, nodes: list[LogNode]) -> None:
        self._nodes = nodes
        self._count = 0
        self.confirmed: dict[str, int] = {}
        self.waiting: list[Future[int | KafkaError]] = []

    def append(self) -> None:
        for node in self._nodes:
            if node.log.is_active:
                self._count += 1
                self._append(node, f"value-{self._count}")

    def _append(self, node: LogNode, value: str) -> None:
        promise = node.begin_append(value)
        promise.add_done_callback(lambda done: self._answered(value, done.result()))
        self.waiting.append(promise)

    def _answered(self, value: str, result: int | KafkaError) -> None:
        if isinstance(result, int):
            self.confirmed[value] = result

    def run(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.append()
            time.sleep(0.02)


def check_log(observer: LogNode, load: Load) -> None:
    """Offsets follow on each other, epochs do not go back, nothing is twice, what was confirmed is in its place."""
    for promise in load.waiting:
        promise.result(180)
    wait_until(lambda: not load.confirmed or observer.follower.end_offset > max(load.confirmed.values()))
    offset = epoch = 0
    found: dict[str, int] = {}
    for batch in observer.thread.call(lambda: list(observer.follower.batches)):
        header = read_header(batch)
        assert header.base_offset == offset
        assert header.leader_epoch >= epoch
        offset, epoch = header.next_offset, header.leader_epoch
        for each in read_batches(batch):
            for record in each.records:
                message = record.known()
                if isinstance(message, ConfigRecord) and message.value is not None:
                    assert message.value not in found
                    found[message.value] = header.base_offset
    assert {value: found.get(value) for value in load.confirmed} == load.confirmed


def torture(zookeeper: ZooKeeperEnsemble, chroot: str, seconds: float, seed: int, *, enough: int) -> None:
    """For so long, and on a busy machine until so many appends are confirmed."""
    random = Random(seed)
    with proxies(zookeeper, 3) as ways:
        configs = [through(way, chroot, SHORT_SESSION_MS) for way in ways]
        with log_nodes(*configs, config_of(zookeeper, chroot)) as nodes:
            *contenders, observer = nodes
            observer.start(campaigns=False)
            for node in contenders:
                node.start()
            wait_active(*contenders)
            load = Load(contenders)
            deadline_s = time.monotonic() + seconds
            while time.monotonic() < deadline_s or len(load.confirmed) <= enough:
                assert time.monotonic() < deadline_s + GIVE_UP_S, f"{len(load.confirmed)} appends are confirmed"
                way = random.choice(ways)
                fault = random.choice((way.cut, way.refuse, lambda way=way: setattr(way, "is_answer_lost", True)))
                fault()
                load.run(random.choice((0.1, 0.5, 1.5)))
                if random.random() < 0.7:
                    for each in ways:
                        each.heal()
                        each.cut()
                load.run(random.choice((0.2, 0.5)))
            for way in ways:
                way.heal()
            active = wait_active(*contenders)
            wait_until(lambda: any(isinstance(node.append("last"), int) for node in contenders if node.log.is_active))
            check_log(observer, load)
            assert active.log.epoch >= 1


def test_contenders_on_bad_connections_keep_one_log(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    torture(zookeeper, chroot, TORTURE_S, seed=len(chroot), enough=20)


def test_an_ensemble_loses_its_leader(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, 3) as ensemble:
        config = ZooKeeperConfig(f"{ensemble.connect}/oncelog", session_timeout_ms=SHORT_SESSION_MS)
        with log_nodes(config, config, config) as nodes:
            first, second, observer = nodes
            observer.start(campaigns=False)
            first.start()
            second.start()
            wait_active(first, second)
            load = Load([first, second])
            load.run(1)
            for way in ("kill", "pause") if IS_LONG else ("kill",):
                leader = ensemble.leader()
                assert leader is not None
                before = len(load.confirmed)
                getattr(leader, way)()
                wait_until(lambda before=before: load.append() or len(load.confirmed) > before + 20)
                if way == "kill":
                    leader.start()
                    leader.wait_ready()
                else:
                    leader.resume()
            check_log(observer, load)
            if IS_LONG:
                _kill_all_and_go_on(ensemble, load, observer)


def _kill_all_and_go_on(ensemble: ZooKeeperEnsemble, load: Load, observer: LogNode) -> None:
    """What was confirmed is on the disks of ZooKeeper."""
    for server in ensemble.servers:
        server.kill()
    for server in ensemble.servers:
        server.start()
    before = len(load.confirmed)
    wait_until(lambda: load.append() or len(load.confirmed) > before + 5)
    check_log(observer, load)


@pytest.mark.skipif(not IS_LONG, reason="long: make test-cluster")
def test_contenders_on_bad_connections_to_an_ensemble_keep_one_log(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, 3) as ensemble:
        torture(ensemble, "/oncelog", TORTURE_S, seed=1, enough=100)


def test_names(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    """What is in ZooKeeper is what docs and operators rely on."""
    with log_nodes(config_of(zookeeper, chroot)) as (node,):
        node.start()
        wait_active(node)
        operator = KazooClient(zookeeper.connect)
        operator.start(60)
        assert set(operator.get_children(chroot)) == {"controller", "epoch", "log", "snapshot", "snapshots"}
        assert operator.get(chroot + LOG + "/00000000000000000000")[0].startswith(b"1 1 1\n")
        assert b'"node": 1, "epoch": 1' in operator.get(chroot + CONTROLLER)[0]
        operator.stop()
        operator.close()
