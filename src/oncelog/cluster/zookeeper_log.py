"""The controllers' log in ZooKeeper: several controllers, of which one is active. No sockets, no threads, no clock.

The nodes are specified in `zookeeper_nodes`.

    become active     create /controller + set /epoch to e+1 with the version that was read
    append batch n    check the version of /epoch + check /log/<n-1> + create /log/<n>
    snapshot          note its id in "sweep"; create its parts; set /snapshot; delete the log before it, and the parts
                      of the last snapshot

Each step is one multi, and all but the first check the version of /epoch: a controller that was replaced writes nothing
any more. A multi that succeeded is the commit.

- The controller that wins syncs, reads to the end, appends its LeaderChange batch, and only then acts.
- At a lost connection a controller leaves its office at once, because others may already see its node vanish. With the
  next connection it reads what was committed, and finds out there whether an append without an answer was written. Then
  it campaigns again. A node /controller of its own session is replaced, since it would block everybody.
- Whoever finds the next log node missing looks at /snapshot: if it is beyond that node, the log was cut.
- A watch only means: look again.
- Log nodes are deleted from the oldest on and parts from the last on. So a deletion that broke off is found and
  finished by the next controller without listing nodes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from oncelog.cluster.committed_log import BATCH_BYTES_MAX, CommittedLog, Snapshot, data_batches
from oncelog.cluster.metadata_log import Follower, no_longer_active
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import Check, Create, Delete, Lost, Node, Operation, Reason, Refused, SetData, ZooKeeper
from oncelog.cluster.zookeeper_nodes import (
    CONTROLLER,
    EPOCH,
    LOG,
    SNAPSHOT,
    SNAPSHOTS,
    SnapshotPointer,
    batch_in,
    decode_leader,
    encode_leader,
    log_node,
    log_path,
    part_path,
    snapshot_id,
    snapshot_path,
)
from oncelog.controller.image_records import VersionedRecord
from oncelog.controller.metadata_batches import BatchWriter
from oncelog.core.address import Address
from oncelog.core.clock import Scheduler, Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, Task
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.cluster_metadata import VotersRecord

RETRY_MS: Final = 200
"""The pause after an operation without an answer on a connection that seems to be there."""
PART_BYTES_MAX: Final = 900_000
DELETED_AT_ONCE_MAX: Final = 100
CHECKS_PER_SESSION: Final = 3
"""How often within the time of a session an active controller without work looks whether it is still active."""

T = TypeVar("T")

logger = logging.getLogger("oncelog.server")


class _Append:
    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.promise: Promise[int | KafkaError] = Promise()

    def resolve(self, result: int | KafkaError) -> None:
        if not self.promise.done:
            self.promise.resolve(result)


class _Entry(NamedTuple):
    """A batch that is to be a log node. The last one of an append completes it."""

    batch: bytes
    data: bytes
    append: _Append
    is_last: bool


class _Job(NamedTuple):
    snapshot: Snapshot
    promise: Promise[KafkaError | None]


class _Disconnected(Exception):
    """An operation has no answer."""


class _NotStored(Exception):
    """What is in ZooKeeper is not what a controller can have left there. The log goes on without the snapshot."""


class _Hopeless(Exception):
    """Why this controller can never serve here."""


class _Fenced(Exception):
    """A multi of the active controller was refused: there is another one."""


class ZooKeeperMetadataLog:
    """A `metadata_log.MetadataLog`, and the `Session` of its `ZooKeeper`."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        *,
        node_id: int,
        address: Address,
        scheduler: Scheduler,
        cluster_id: str = "",
        voters: VotersRecord | None = None,
        on_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_fault` is told why this controller can never serve here. It then does nothing any more."""
        self.node_id = node_id
        self.committed = CommittedLog()
        self.leader: Leader | None = None
        self._zookeeper = zookeeper
        self._address = address
        self._scheduler = scheduler
        self._cluster_id = cluster_id.encode()
        self._voters = voters
        self._on_fault = on_fault
        self._follower: Follower | None = None
        self._task: Task | None = None
        self._news: Promise[None] = Promise()
        self._wants_office = False
        self._is_in_office = False
        self._must_check_office = False
        self._epoch = 0
        self._epoch_version = 0
        """Of the node /epoch, since this controller won."""
        self._next_number = 0
        self._oldest_number: int | None = None
        """Of the log nodes that are still there, as far as this controller has found out in its office."""
        self._sequence = 0
        self._queue: deque[_Entry] = deque()
        self._sent: deque[_Entry] = deque()
        """Entries whose multi has no answer yet, in office or after it."""
        self._sent_number = 0
        """The log node of the first of them."""
        self._job: _Job | None = None
        self._incomplete: SnapshotPointer | None = None
        """A snapshot that was not there when it was last read."""
        self._silence: Timer | None = None
        self._retrial: Timer | None = None

    @property
    def is_active(self) -> bool:
        return self._is_in_office

    @property
    def epoch(self) -> int:
        return max(self._epoch, self.committed.last_epoch)

    @property
    def next_offset(self) -> int:
        waiting = self._queue or self._sent
        return read_header(waiting[-1].batch).next_offset if waiting else self.committed.end_offset

    # Calls

    def start(self, follower: Follower) -> None:
        self._follower = follower
        self._zookeeper.start(self)

    def campaign(self) -> None:
        self._wants_office = True
        self._wake()

    def resign(self) -> None:
        self._wants_office = False
        self._leave("it has resigned")
        self._wake()

    def append(self, records: Sequence[VersionedRecord | bytes]) -> Promise[int | KafkaError]:
        if not self._is_in_office:
            return Promise.resolved(no_longer_active())
        append = _Append(self.next_offset)
        try:
            self._enqueue(data_batches(records, self._writer()), append)
        except KafkaError as error:
            return Promise.resolved(error)
        self._wake()
        return append.promise

    def write_snapshot(self, snapshot: Snapshot) -> Promise[KafkaError | None]:
        if not self._is_in_office or self._job is not None:
            return Promise.resolved(no_longer_active("only the active controller stores snapshots, one at a time"))
        self._job = _Job(snapshot, Promise())
        self._wake()
        return self._job.promise

    def close(self) -> None:
        self._follower = None
        self.on_disconnected("it stops")
        self._fail_sent("the controller has stopped")
        self._zookeeper.close()

    # The connection

    def on_connected(self) -> None:
        self._leave("the connection is a new one")
        self._restart()

    def on_disconnected(self, reason: str) -> None:
        self._stop_following()
        self._leave(reason)

    def on_refused(self, problem: str) -> None:
        self._give_up(problem)

    def _stop_following(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None
        # Requests fail before the end of their connection is known. The next connection may be there, and this
        # controller in office again, before the retrial is due.
        if self._retrial is not None:
            self._retrial.cancel()
            self._retrial = None

    def _restart(self) -> None:
        self._stop_following()
        self._task = Task(self._serve())
        self._task.start()

    async def _serve(self) -> None:
        try:
            await self._follow()
        except _Disconnected as error:
            self._leave(f"ZooKeeper does not answer: {error}")
            self._retrial = self._scheduler.call_later_ms(RETRY_MS, self._restart)
        except _Hopeless as reason:
            self._give_up(str(reason))
        except Exception as error:
            # A controller that stayed in office without working would keep all others out of it.
            logger.exception("this controller cannot follow the metadata log any more")
            self._give_up(f"the metadata log cannot be followed: {error!r}")

    def _give_up(self, problem: str) -> None:
        try:
            self._leave(problem)
        finally:
            self.close()
            self._on_fault(problem)

    def _wake(self) -> None:
        if not self._news.done:
            self._news.resolve(None)

    # Following

    async def _follow(self) -> None:
        await self._prepare()
        await self._check_cluster()
        await self._sync()
        await self._load_if_behind()
        await self._read_to_end()
        # What is not in the log now will not get there: the session has sent nothing since, or is another one.
        self._fail_sent("its append was not written")
        while True:
            self._news = Promise()
            await self._read_to_end()
            if await self._is_office_free() and self._wants_office:
                await self._take_office()
            elif not await self._watch(log_path(self._next_number)) and not await self._load_if_behind():
                # The log may have gone on and been cut before the watch was set, which would then wait for ever.
                await self._news

    async def _prepare(self) -> None:
        """Another controller may make the nodes in the same moment."""
        nodes = [Create(EPOCH, b"0"), Create(LOG, self._cluster_id), Create(SNAPSHOT), Create(SNAPSHOTS)]
        if await self._get(EPOCH) is None:
            refused = await self._multi(nodes)
            if refused is not None and refused.reason is not Reason.NODE_EXISTS:
                path = nodes[refused.position].path
                raise _Hopeless(f"{path} cannot be made: {refused.detail or refused.reason.value}")

    async def _check_cluster(self) -> None:
        node = await self._get(LOG)
        if node is None:
            raise _Hopeless(f"there is a node {EPOCH} without a node {LOG}: somebody has deleted it")
        if node.data != self._cluster_id:
            own, found = self._cluster_id.decode(), node.data.decode()
            raise _Hopeless(f"there is the metadata of cluster {found}, not of {own}")

    async def _read_to_end(self) -> None:
        while True:
            node = await self._get(log_path(self._next_number))
            if node is not None:
                self._deliver_node(node)
            elif not await self._load_if_behind():
                return

    async def _load_if_behind(self) -> bool:
        """Load the snapshot if the log before it may be gone already. Whether there is anything more to read."""
        pointer = SnapshotPointer.of(await self._get(SNAPSHOT))
        known = self.committed.snapshot
        if not pointer.is_set or (known is not None and pointer.name <= known.name):
            return False
        parts = [await self._get(part_path(pointer.id, number)) for number in range(pointer.parts)]
        data = [part.data for part in parts if part is not None]
        if len(data) < pointer.parts:
            # It was replaced meanwhile. If not, somebody else has deleted it.
            if pointer == self._incomplete:
                logger.error("parts of the snapshot %s are missing in ZooKeeper: see docs/cluster.md", pointer.id)
                await self._pause()
            self._incomplete = pointer
            return True
        self._take_snapshot(Snapshot(pointer.name, b"".join(data)), pointer.log)
        return True

    def _take_snapshot(self, snapshot: Snapshot, log: int) -> None:
        if log <= self._next_number:
            self.committed.shorten(snapshot)
            return
        self.committed.load(snapshot)
        self._next_number = log
        if self._follower is not None:
            self._follower.on_snapshot(snapshot)

    def _deliver_node(self, node: Node) -> None:
        mine = self._sent[0] if self._sent and self._sent_number == self._next_number else None
        if mine is not None and mine.data == node.data:
            self._deliver_sent()
        else:
            self._commit(batch_in(node.data))

    def _deliver_sent(self) -> None:
        entry = self._sent.popleft()
        self._sent_number += 1
        self._commit(entry.batch)
        if entry.is_last:
            entry.append.resolve(entry.append.first_offset)

    def _commit(self, batch: bytes) -> None:
        self.committed.add(batch)
        self._next_number += 1
        if self._follower is not None:
            self._follower.on_committed(batch)

    async def _is_office_free(self) -> bool:
        node = await self._get(CONTROLLER) if await self._watch(CONTROLLER) else None
        if node is not None and node.owner == self._zookeeper.session_id:
            # Of an office that this controller has left.
            await self._multi([Delete(CONTROLLER, node.version)])
            node = None
        leader = None if node is None else decode_leader(node.data)
        # A node of this controller's last process stays there until the session of that one is over.
        self._note_leader(None if leader is None or leader.node_id == self.node_id else leader)
        return node is None

    def _note_leader(self, leader: Leader | None) -> None:
        if leader != self.leader:
            self.leader = leader
            self._epoch = max(self._epoch, 0 if leader is None else leader.epoch)
            if self._follower is not None:
                self._follower.on_leader(leader)

    # In office

    async def _take_office(self) -> None:
        node = await self._get(EPOCH)
        if node is None:
            return
        leader = Leader(self.node_id, int(node.data) + 1, self._address)
        winning: list[Operation] = [
            Create(CONTROLLER, encode_leader(leader), is_ephemeral=True),
            SetData(EPOCH, str(leader.epoch).encode(), node.version),
        ]
        if await self._multi(winning) is not None:
            return
        self._epoch, self._epoch_version, self._oldest_number = leader.epoch, node.version + 1, None
        await self._sync()
        await self._read_to_end()
        try:
            await self._open_epoch()
            if self._wants_office:
                self._is_in_office = self._must_check_office = True
                self._note_leader(leader)
                await self._act()
        except _Fenced as fenced:
            self._leave(str(fenced))
            await self._pause()

    async def _pause(self) -> None:
        over: Promise[None] = Promise()
        self._scheduler.call_later_ms(RETRY_MS, lambda: over.resolve(None))
        await over

    async def _open_epoch(self) -> None:
        now_ms = self._scheduler.now_ms()
        batches = self.committed.first_batches(self.node_id, self._epoch, self._voters, timestamp_ms=now_ms)
        self._enqueue(batches, _Append(self.next_offset))
        await self._write_queue()

    async def _act(self) -> None:
        """Until the office is left."""
        while self._is_in_office:
            self._news = Promise()
            if self._must_check_office:
                await self._check_office()
            elif self._queue:
                await self._write_queue()
            elif self._job is not None:
                await self._do(self._job)
            else:
                interval_ms = self._zookeeper.session_timeout_ms // CHECKS_PER_SESSION
                timer = self._scheduler.call_later_ms(interval_ms, self._look_again)
                await self._news
                timer.cancel()

    async def _check_office(self) -> None:
        """Somebody may have deleted the node to have another controller elected."""
        self._must_check_office = False
        self._expect_answer()
        node = await self._get(CONTROLLER) if await self._watch(CONTROLLER) else None
        self._answered()
        if node is None or node.owner != self._zookeeper.session_id:
            raise _Fenced("the node /controller is gone")

    def _look_again(self) -> None:
        self._must_check_office = True
        self._wake()

    def _writer(self) -> BatchWriter:
        now_ms = self._scheduler.now_ms()
        return BatchWriter(next_offset=self.next_offset, epoch=self._epoch, timestamp_ms=now_ms)

    def _enqueue(self, batches: Sequence[bytes], append: _Append) -> None:
        for number, batch in enumerate(batches, 1):
            self._sequence += 1
            data = log_node(batch, self._epoch, self.node_id, self._sequence)
            self._queue.append(_Entry(batch, data, append, number == len(batches)))

    async def _write_queue(self) -> None:
        while self._queue:
            size, operations = 0, self._checks()
            self._sent_number = self._next_number
            while self._queue and (not self._sent or size + len(self._queue[0].data) <= BATCH_BYTES_MAX):
                entry = self._queue.popleft()
                operations.append(Create(log_path(self._sent_number + len(self._sent)), entry.data))
                self._sent.append(entry)
                size += len(entry.data)
            await self._write(operations)

    def _checks(self) -> list[Operation]:
        operations: list[Operation] = [Check(EPOCH, self._epoch_version)]
        if self._next_number > 0:
            operations.append(Check(log_path(self._next_number - 1), 0))
        return operations

    async def _write(self, operations: Sequence[Operation]) -> None:
        count = len(self._sent)
        self._expect_answer()
        refused = await self._multi(operations)
        self._answered()
        if len(self._sent) < count:
            raise _Fenced("an answer came after the time of a session")
        if refused is not None:
            self._fail_sent("another controller is active")
            raise _Fenced(f"an append was refused ({refused.reason.value}: {operations[refused.position].path})")
        while self._sent:
            self._deliver_sent()

    def _expect_answer(self) -> None:
        self._answered()
        self._silence = self._scheduler.call_later_ms(self._zookeeper.session_timeout_ms, self._on_silence)

    def _answered(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _on_silence(self) -> None:
        self._leave("ZooKeeper has not answered for the time of a session")
        self._fail_sent("ZooKeeper has not answered for the time of a session")

    def _leave(self, reason: str) -> None:
        """Leave the office. Nothing that was decided in it is written from here on."""
        self._answered()
        if self._is_in_office:
            logger.info("this controller is not active any more: %s", reason)
            self._is_in_office = False
            self._note_leader(None)
        dropped, self._queue = self._queue, deque()
        for entry in dropped:
            entry.append.resolve(no_longer_active(reason))
        if self._job is not None:
            job, self._job = self._job, None
            job.promise.resolve(no_longer_active(reason))
        if self._sent:
            self._silence = self._scheduler.call_later_ms(self._zookeeper.session_timeout_ms, self._on_silence)

    def _fail_sent(self, reason: str) -> None:
        sent, self._sent = self._sent, deque()
        for entry in sent:
            entry.append.resolve(no_longer_active(reason))

    # Snapshots

    async def _do(self, job: _Job) -> None:
        error: KafkaError | None = None
        try:
            await self._store(job.snapshot)
        except _NotStored as failure:
            logger.warning("%s", failure)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure))
        if self._job is job:
            self._job = None
            job.promise.resolve(error)

    async def _store(self, snapshot: Snapshot) -> None:
        name, data = snapshot
        pointer = await self._sweep(SnapshotPointer.of(await self._get(SNAPSHOT)))
        parts = [data[start : start + PART_BYTES_MAX] for start in range(0, len(data), PART_BYTES_MAX)]
        if name.end_offset > pointer.name.end_offset:
            id_ = snapshot_id(name)
            pointer = await self._point(pointer._replace(sweep=((id_, len(parts)),)))
            await self._step([Create(snapshot_path(id_))])
            for number, part in enumerate(parts):
                await self._step([Create(part_path(id_, number), part)])
            log = self._next_number - self.committed.batches_from(name.end_offset)
            sweep = ((pointer.id, pointer.parts),) if pointer.is_set else ()
            pointer = await self._point(SnapshotPointer(name, len(parts), log, sweep, pointer.version))
            self.committed.shorten(snapshot)
            await self._sweep(pointer)

    async def _point(self, pointer: SnapshotPointer) -> SnapshotPointer:
        await self._step([SetData(SNAPSHOT, pointer.encode(), pointer.version)])
        return pointer._replace(version=pointer.version + 1)

    async def _step(self, operations: Sequence[Operation]) -> None:
        """One multi of the active controller; appends that came meanwhile go next."""
        self._expect_answer()
        refused = await self._multi([Check(EPOCH, self._epoch_version), *operations])
        self._answered()
        if not self._is_in_office:
            raise _Fenced("it has left its office")
        if refused is not None and refused.position == 0:
            raise _Fenced(f"a snapshot was refused ({refused.reason.value})")
        if refused is not None:
            path = operations[refused.position - 1].path
            raise _NotStored(f"the snapshot of the metadata is not stored ({refused.reason.value}: {path})")
        await self._write_queue()

    async def _sweep(self, pointer: SnapshotPointer) -> SnapshotPointer:
        """Delete what snapshots that are not in use have left, and the log before the one that is."""
        for id_, parts in pointer.sweep:
            paths = [part_path(id_, number) for number in reversed(range(parts))]
            there = [path for path in [*paths, snapshot_path(id_)] if await self._get(path) is not None]
            await self._delete(there)
        # The last node stays: the next append checks it.
        end = min(pointer.log, self._next_number - 1)
        oldest = await self._find_oldest(end)
        await self._delete([log_path(number) for number in range(oldest, end)])
        self._oldest_number = max(oldest, end)
        return await self._point(pointer._replace(sweep=())) if pointer.sweep else pointer

    async def _delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETED_AT_ONCE_MAX):
            await self._step([Delete(path) for path in paths[start : start + DELETED_AT_ONCE_MAX]])

    async def _find_oldest(self, end: int) -> int:
        """The first log node that is there, by bisection: those before it were deleted in order."""
        if self._oldest_number is not None:
            return self._oldest_number
        low, high = 0, max(end, 0)
        while low < high:
            middle = (low + high) // 2
            if await self._get(log_path(middle)) is None:
                low = middle + 1
            else:
                high = middle
        return low

    # Operations

    async def _get(self, path: str) -> Node | None:
        return _answer(await self._zookeeper.get(path))

    async def _multi(self, operations: Sequence[Operation]) -> Refused | None:
        refused = _answer(await self._zookeeper.multi(operations))
        if refused is not None and refused.reason is Reason.DENIED:
            raise _Hopeless(f"this controller may not write {operations[refused.position].path}: {refused.detail}")
        return refused

    async def _sync(self) -> None:
        _answer(await self._zookeeper.sync())

    async def _watch(self, path: str) -> bool:
        return _answer(await self._zookeeper.watch(path, self._look_again))


def _answer(answer: T | Lost) -> T:
    if isinstance(answer, Lost):
        raise _Disconnected(answer.detail)
    return answer
