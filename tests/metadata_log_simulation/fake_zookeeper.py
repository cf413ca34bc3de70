"""ZooKeeper on a virtual clock: sessions, stale reads, watches, lost packets. What a real one promises, and no more.

Writes are in one order. A read is answered from a prefix of them that never goes back for one session. A request of a
connection that broke may still be carried out, until the session has another connection. A session ends when the
servers have not heard of it for its time; its client learns that with its next connection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from oncelog.cluster.zookeeper import (
    NO_OWNER,
    Check,
    Create,
    Delete,
    Lost,
    Node,
    Operation,
    Reason,
    Refused,
    Session,
    SetData,
)
from oncelog.core.clock import Timer
from oncelog.core.promise import Promise
from tests.virtual_clock import VirtualScheduler

T = TypeVar("T")
SESSION_MS = 3000
NOTICED_MS = 2 * SESSION_MS // 3
"""A client that hears nothing for so long gives its connection up."""
RECONNECT_MS = 50
LAG_CHANGES = 0.2
"""How probable that is with each read: a server that is behind stays behind for some of them."""
ANY_VERSION = -1


class Process:
    """The thread of one client: a scheduler that can be paused, as by SIGSTOP."""

    def __init__(self, scheduler: VirtualScheduler) -> None:
        self._scheduler = scheduler
        self._is_paused = False
        self._is_dead = False
        self._held: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._scheduler.now_ms()

    def monotonic_ms(self) -> int:
        return self._scheduler.monotonic_ms()

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self._scheduler.call_later_ms(delay_ms, lambda: self.deliver(callback))

    def deliver(self, callback: Callable[[], None]) -> None:
        if self._is_paused:
            self._held.append(callback)
        elif not self._is_dead:
            callback()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        held, self._held = self._held, []
        for callback in held:
            self.deliver(callback)

    def kill(self) -> None:
        self._is_dead = True


class _Change(NamedTuple):
    zxid: int
    node: Node | None


class Ensemble:
    def __init__(self, scheduler: VirtualScheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.zxid = 0
        self.is_up = True
        self.created: dict[str, bytes] = {}
        """Everything that was ever made under a path, also if it was deleted later."""
        self.created_in_order: list[str] = []
        self._changes: dict[str, list[_Change]] = {}
        self._present: set[str] = set()
        self._sessions: dict[int, FakeZooKeeper] = {}
        self.on_commit: Callable[[Sequence[Operation]], None] = lambda _: None
        self._next_session = 1

    # The tree

    def read(self, path: str, zxid: int | None = None) -> Node | None:
        changes = self._changes.get(path, [])
        position = len(changes) if zxid is None else bisect_right(changes, zxid, key=lambda change: change.zxid)
        return changes[position - 1].node if position else None

    def children(self, path: str, zxid: int) -> list[str] | None:
        if self.read(path, zxid) is None:
            return None
        below = [each for each in self._changes if each.rpartition("/")[0] == path]
        return [each.rpartition("/")[2] for each in below if self.read(each, zxid) is not None]

    def has_changed_since(self, path: str, zxid: int) -> bool:
        changes = self._changes.get(path, [])
        return bool(changes) and changes[-1].zxid > zxid

    def paths(self) -> list[str]:
        return sorted(self._present)

    def commit(self, operations: Sequence[Operation], session: int) -> Refused | None:
        staged: dict[str, Node | None] = {}
        for position, operation in enumerate(operations):
            reason = self._stage(operation, staged, session)
            if reason is not None:
                return Refused(position, reason)
        self.zxid += 1
        self.on_commit(operations)
        for path, node in staged.items():
            if node is not None and self.read(path) is None:
                self.created[path] = node.data
                self.created_in_order.append(path)
                self._present.add(path)
            elif node is None:
                self._present.discard(path)
            self._changes.setdefault(path, []).append(_Change(self.zxid, node))
        for client in list(self._sessions.values()):
            client.on_change(set(staged))
        return None

    def _stage(self, operation: Operation, staged: dict[str, Node | None], session: int) -> Reason | None:
        path = operation.path
        node = staged[path] if path in staged else self.read(path)
        if isinstance(operation, Create):
            parent = path.rpartition("/")[0]
            if parent and (staged.get(parent) or self.read(parent)) is None:
                return Reason.NO_NODE
            if node is not None:
                return Reason.NODE_EXISTS
            staged[path] = Node(operation.data, 0, session if operation.is_ephemeral else NO_OWNER)
            return None
        if node is None:
            return Reason.NO_NODE
        if operation.version not in (ANY_VERSION, node.version):
            return Reason.BAD_VERSION
        if isinstance(operation, SetData):
            staged[path] = Node(operation.data, node.version + 1, node.owner)
        elif isinstance(operation, Delete):
            children = [child for child in self._present if child.startswith(f"{path}/")]
            if any(staged.get(child, self.read(child)) is not None for child in children):
                return Reason.OTHER
            staged[path] = None
        else:
            assert isinstance(operation, Check)
        return None

    # Sessions

    def open_session(self, client: FakeZooKeeper) -> int:
        number, self._next_session = self._next_session, self._next_session + 1
        self._sessions[number] = client
        return number

    def has_session(self, number: int) -> bool:
        return number in self._sessions

    def end_session(self, number: int) -> None:
        if self._sessions.pop(number, None) is not None:
            owned = [path for path in self.paths() if (node := self.read(path)) is not None and node.owner == number]
            self.commit([Delete(path) for path in owned], NO_OWNER)

    def stop(self) -> None:
        """No majority: nothing is answered, and no session ends."""
        self.is_up = False
        for client in list(self._sessions.values()):
            client.cut()

    def start(self) -> None:
        self.is_up = True
        for client in list(self._sessions.values()):
            client.heard_ms = self.scheduler.monotonic_ms()


class FakeZooKeeper:
    """A `ZooKeeper`: one client."""

    def __init__(self, ensemble: Ensemble, process: Process) -> None:
        self._ensemble = ensemble
        self._process = process
        self._random = ensemble.random
        self._scheduler = ensemble.scheduler
        self._session: Session | None = None
        self.session_id = 0
        self.session_timeout_ms = SESSION_MS
        self.heard_ms = 0
        """When the servers last heard of the session."""
        self._is_connected = False
        self._connection = 0
        self._is_reachable = True
        self._is_closed = False
        self._is_mute = False
        self._zxid = 0
        """The last write that the server has seen that this client is connected to, as far as it was asked."""
        self._seen = 0
        """The last one that this client was told of: the next server is not behind that, but may be behind a write of
        its own without an answer."""
        self._lag = 0
        """How many writes the server has not seen yet that this client is connected to."""
        self._last_arrival_ms = 0
        self._last_answer_ms = 0
        self._pending: dict[Promise[Any], None] = {}
        self._watches: dict[str, list[Callable[[], None]]] = {}

    # As a client

    def start(self, session: Session) -> None:
        self._session = session
        self._scheduler.call_later_ms(0, self._try_to_connect)
        self._scheduler.call_later_ms(SESSION_MS // 3, self._ping)

    def get(self, path: str) -> Promise[Node | Lost | None]:
        return self._request(lambda: self._ensemble.read(path, self._view()))

    def children(self, path: str) -> Promise[Sequence[str] | Lost | None]:
        return self._request(lambda: self._ensemble.children(path, self._view()))

    def multi(self, operations: Sequence[Operation]) -> Promise[Refused | Lost | None]:
        def apply() -> Refused | None:
            result = self._ensemble.commit(operations, self.session_id)
            self._zxid = self._ensemble.zxid
            return result

        return self._request(apply)

    def sync(self) -> Promise[Lost | None]:
        def apply() -> None:
            self._zxid = self._ensemble.zxid

        return self._request(apply)

    def watch(self, path: str, on_event: Callable[[], None]) -> Promise[bool | Lost]:
        def apply() -> bool:
            view = self._view()
            found = self._ensemble.read(path, view)
            if self._ensemble.has_changed_since(path, view):
                # The server will come to the change that it has not seen yet, even if that was undone since.
                self._later(on_event)
            else:
                self._watches.setdefault(path, []).append(on_event)
            return found is not None

        return self._request(apply)

    def close(self) -> None:
        self._is_closed = True
        self._is_connected = False
        self._scheduler.call_later_ms(self._latency_ms(), lambda: self._ensemble.end_session(self.session_id))

    # Faults

    def cut(self) -> None:
        """The connection breaks, and the client notices at once."""
        if self._is_connected:
            self._is_connected = False
            self._process.deliver(self._lose)

    def mute(self) -> None:
        """Packets are lost in both directions until the client gives up."""
        if self._is_connected and not self._is_mute:
            self._is_mute = True
            connection = self._connection
            self._scheduler.call_later_ms(
                self._random.randint(NOTICED_MS // 2, NOTICED_MS),
                lambda: self.cut() if self._connection == connection else None,
            )

    def isolate(self) -> None:
        self._is_reachable = False
        self.mute()

    def heal(self) -> None:
        self._is_reachable = True

    def kill(self) -> None:
        self._is_closed = True
        self._is_connected = False
        self._expire_later()

    # The network

    def on_change(self, paths: set[str]) -> None:
        for path in paths:
            for on_event in self._watches.pop(path, []):
                self._later(on_event)

    def _later(self, on_event: Callable[[], None]) -> None:
        connection = self._connection
        self._scheduler.call_later_ms(
            self._latency_ms(),
            lambda: self._process.deliver(on_event) if self._connection == connection and not self._is_mute else None,
        )

    def _view(self) -> int:
        """A prefix of the writes, not older than what this session has seen."""
        if self._random.random() < LAG_CHANGES:
            self._lag = self._random.choice((0, 0, 0, 1, 3))
        self._zxid = max(self._zxid, self._ensemble.zxid - self._lag)
        return self._zxid

    def _latency_ms(self) -> int:
        return self._random.choice((1, 1, 2, 5, 20, 100))

    def _request(self, apply: Callable[[], T]) -> Promise[T | Lost]:
        promise: Promise[T | Lost] = Promise()
        self._pending[promise] = None
        connection = self._connection
        self._last_arrival_ms = max(self._last_arrival_ms, self._scheduler.monotonic_ms() + self._latency_ms())
        is_on_its_way = self._is_connected and not self._is_mute

        def arrive() -> None:
            is_moved = self._connection != connection or not self._ensemble.is_up
            if is_moved or not is_on_its_way or not self._ensemble.has_session(self.session_id):
                return
            if not self._is_connected and self._random.random() < 0.5:
                return
            self.heard_ms = self._scheduler.monotonic_ms()
            result, zxid = apply(), self._zxid
            self._last_answer_ms = max(self._last_answer_ms, self._scheduler.monotonic_ms() + self._latency_ms())
            delay_ms = self._last_answer_ms - self._scheduler.monotonic_ms()
            self._scheduler.call_later_ms(delay_ms, lambda: answer(result, zxid))

        def answer(result: T, zxid: int) -> None:
            if self._connection == connection and self._is_connected and not self._is_mute:
                self._process.deliver(lambda: self._resolve(promise, result, zxid))

        self._scheduler.call_later_ms(self._last_arrival_ms - self._scheduler.monotonic_ms(), arrive)
        return promise

    def _resolve(self, promise: Promise[Any], result: Any, zxid: int) -> None:
        self._seen = max(self._seen, zxid)
        if promise in self._pending:
            del self._pending[promise]
            promise.resolve(result)

    def _lose(self) -> None:
        """What the client sees of a broken connection, in kazoo's order: every request, the state, every watch."""
        watches, self._watches = self._watches, {}
        pending, self._pending = self._pending, {}
        if self._session is not None and not self._is_closed:
            for promise in pending:
                promise.resolve(Lost("connection loss"))
            self._session.on_disconnected("the connection is lost")
            for callbacks in watches.values():
                for callback in callbacks:
                    callback()
        self._scheduler.call_later_ms(RECONNECT_MS, self._try_to_connect)

    def _try_to_connect(self) -> None:
        if self._is_closed or self._is_connected:
            return
        if not self._is_reachable or not self._ensemble.is_up:
            self._scheduler.call_later_ms(RECONNECT_MS, self._try_to_connect)
            return
        if not self._ensemble.has_session(self.session_id):
            self.session_id = self._ensemble.open_session(self)
        self._connection += 1
        self._zxid = self._seen
        self._is_connected, self._is_mute = True, False
        self.heard_ms = self._scheduler.monotonic_ms()
        if self._session is not None:
            self._process.deliver(self._session.on_connected)

    def _ping(self) -> None:
        if self._is_closed:
            return
        if self._is_connected and not self._is_mute and not self._process._is_paused:
            self.heard_ms = self._scheduler.monotonic_ms()
        self._expire_if_silent()
        self._scheduler.call_later_ms(SESSION_MS // 6, self._ping)

    def _expire_later(self) -> None:
        number = self.session_id
        self._scheduler.call_later_ms(SESSION_MS, lambda: self._ensemble.end_session(number))

    def _expire_if_silent(self) -> None:
        if self._ensemble.is_up and self._scheduler.monotonic_ms() - self.heard_ms > SESSION_MS:
            self._ensemble.end_session(self.session_id)
            self.cut()
