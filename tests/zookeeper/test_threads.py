"""kazoo calls back on threads of its own; everything that follows happens on the thread of the broker's state."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncelog.cluster.zookeeper import Create, Node
from oncelog.server.zookeeper_client import ZooKeeperClient
from oncelog.testing.zookeeper import ZooKeeperEnsemble
from tests.waiting import wait_until
from tests.zookeeper.nodes import LoopThread
from tests.zookeeper.proxy import Proxy
from tests.zookeeper.test_bad_connections import proxies, through


class ThreadNotes:
    """A `Session` that notes on which thread it is told what, and from which threads that was handed over."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self.own = thread.call(threading.get_ident)
        self.seen: dict[str, set[int]] = {}
        self.given_by: set[int] = set()

    def note(self, what: str) -> None:
        self.seen.setdefault(what, set()).add(threading.get_ident())

    def on_connected(self) -> None:
        self.note("connected")

    def on_disconnected(self, reason: str) -> None:
        self.note(reason)

    def on_refused(self, problem: str) -> None:
        self.note("refused")

    def hand_over(self, function: Callable[[], None]) -> None:
        self.given_by.add(threading.get_ident())
        self._thread.loop.call_soon_threadsafe(function)


def test_listeners_completions_and_watches_come_on_the_loop(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    thread = LoopThread()
    notes = ThreadNotes(thread)
    with proxies(zookeeper, 1) as (proxy,):
        client = ZooKeeperClient(through(proxy, chroot), notes.hand_over)
        try:
            thread.call(lambda: client.start(notes))
            wait_until(lambda: "connected" in notes.seen)
            _ask(thread, client, notes)
            _lose_the_connection(proxy, notes)
        finally:
            thread.call(client.close)
            thread.stop()
    expected = {"connected", "the connection is lost", "multi", "get", "sync", "watch", "event"}
    assert notes.seen == {what: {notes.own} for what in expected}
    # State listeners, completions and watches have a thread of kazoo each.
    assert notes.own not in notes.given_by
    assert len(notes.given_by) >= 3


def _ask(thread: LoopThread, client: ZooKeeperClient, notes: ThreadNotes) -> None:
    def begin() -> None:
        client.watch("/a", lambda: notes.note("event")).then(lambda _: notes.note("watch"))
        client.multi([Create("/a", b"1")]).then(lambda _: notes.note("multi"))
        client.sync().then(lambda _: notes.note("sync"))
        client.get("/a").then(lambda _: notes.note("get"))

    thread.call(begin)
    wait_until(lambda: {"watch", "multi", "sync", "get", "event"} <= set(notes.seen))
    found = thread.wait_for(lambda: client.get("/a"))
    assert isinstance(found, Node)


def _lose_the_connection(proxy: Proxy, notes: ThreadNotes) -> None:
    proxy.cut()
    wait_until(lambda: "the connection is lost" in notes.seen)


def test_nothing_is_called_back_after_the_end(zookeeper: ZooKeeperEnsemble, chroot: str) -> None:
    thread = LoopThread()
    notes = ThreadNotes(thread)
    with proxies(zookeeper, 1) as (proxy,):
        client = ZooKeeperClient(through(proxy, chroot), notes.hand_over)
        thread.call(lambda: client.start(notes))
        wait_until(lambda: "connected" in notes.seen)

        def ask_and_close() -> None:
            client.watch("/a", lambda: notes.note("event")).then(lambda _: notes.note("watch"))
            client.close()

        thread.call(ask_and_close)
        wait_until(lambda: not any(each.name == "oncelog-zookeeper-close" for each in threading.enumerate()))
        thread.call(lambda: None)
        thread.stop()
    assert set(notes.seen) == {"connected"}
