"""The controllers' log in ZooKeeper: several controllers, of which one is active. No sockets, no threads, no clock.

The nodes are specified in `zookeeper_nodes`. `zookeeper_appends` has the appends that are not written yet,
`zookeeper_snapshots` stores snapshots and deletes what they replace.

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
- A controller that does not find the last log node that it has read reads no further, takes no office, and waits for
  it. So does one that finds a gap, or an epoch before that of the log.
- Whoever finds the next log node missing looks at /snapshot: if it is beyond that node, the log was cut.
- A watch only means: look again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from oncelog.cluster.committed_log import CommittedLog, Snapshot, data_batches
from oncelog.cluster.metadata_log import Follower, no_longer_active
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import Check, Create, Delete, Lost, Node, Operation, Reason, Refused, SetData, ZooKeeper
from oncelog.cluster.zookeeper_appends import PendingAppends
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
    log_path,
    part_path,
)
from oncelog.cluster.zookeeper_snapshots import NotStored, StoredSnapshots
from oncelog.controller.image_records import VersionedRecord
from oncelog.controller.metadata_batches import BatchWriter
from oncelog.core.address import Address
from oncelog.core.clock import Scheduler, Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, Task
from oncelog.protocol.messages.cluster_metadata import VotersRecord

RETRY_MS: Final = 200
"""The pause after an operation without an answer on a connection that seems to be there."""
CHECKS_PER_SESSION: Final = 3
"""How often within the time of a session an active controller without work looks whether it is still active."""

T = TypeVar("T")

logger = logging.getLogger("oncelog.server")


class _Job(NamedTuple):
    snapshot: Snapshot
    promise: Promise[KafkaError | None]


class _Disconnected(Exception):
    """An operation has no answer."""


class _Hopeless(Exception):
    """This controller can never serve here; the message says why."""


class _LostLog(Exception):
    """The log is not the one that was read; the message says where."""


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
        self._appends = PendingAppends(node_id)
        self._job: _Job | None = None
        self._incomplete: SnapshotPointer | None = None
        """A snapshot that was not there when it was last read."""
        self._lost_part: str | None = None
        self._is_own_logged = False
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
        return self._appends.next_offset(self.committed.end_offset)

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
        now_ms = self._scheduler.now_ms()
        writer = BatchWriter(next_offset=self.next_offset, epoch=self._epoch, timestamp_ms=now_ms)
        try:
            promise = self._appends.add(data_batches(records, writer), self._epoch)
        except KafkaError as error:
            return Promise.resolved(error)
        self._wake()
        return promise

    def write_snapshot(self, snapshot: Snapshot) -> Promise[KafkaError | None]:
        if not self._is_in_office or self._job is not None:
            return Promise.resolved(no_longer_active("only the active controller stores snapshots, one at a time"))
        self._job = _Job(snapshot, Promise())
        self._wake()
        return self._job.promise

    def close(self) -> None:
        self._follower = None
        self.on_disconnected("it stops")
        self._appends.give_up_sent("the controller has stopped")
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
        except _LostLog as lost:
            self._leave(str(lost))
            self._tell_lost(str(lost))
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
        await self._find_place()
        await self._load_if_behind()
        await self._read_to_end()
        # What is not in the log now will not get there: the session has sent nothing since, or is another one.
        self._appends.fail_sent("its append was not written")
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
            if self._next_number > 0:
                raise _LostLog(f"the node {EPOCH} is gone; {self._epoch_repair}")
            refused = await self._multi(nodes)
            if refused is not None and refused.reason is not Reason.NODE_EXISTS:
                path = nodes[refused.position].path
                raise _Hopeless(f"{path} cannot be made: {refused.detail or refused.reason.value}")

    async def _check_cluster(self) -> None:
        node = await self._get(LOG)
        if node is None and self._next_number > 0:
            raise _LostLog(f"the node {LOG} is gone")
        if node is None:
            raise _Hopeless(f"there is a node {EPOCH} without a node {LOG}: somebody has deleted it")
        if node.data != self._cluster_id:
            own, found = self._cluster_id.decode(), node.data.decode()
            raise _Hopeless(f"there is the metadata of cluster {found}, not of {own}")

    async def _find_place(self) -> None:
        """Whether the log is still the one that was read: it may have been restored between two connections. If what
        tells that is not there, since it was cut off or never read, the snapshot is read that has replaced it."""
        number = self._next_number
        while number > 0 and not await self._has_last_batch():
            pointer = SnapshotPointer.of(await self._get(SNAPSHOT))
            if pointer.log < number or pointer.name.end_offset < self.committed.end_offset:
                is_read = self.committed.last_batch is not None
                lost = f"node {log_path(number - 1)}" if is_read else f"snapshot before the node {log_path(number)}"
                raise _LostLog(f"the {lost} is gone")
            snapshot = await self._read_snapshot(pointer)
            if snapshot is not None:
                self._take_snapshot(snapshot, pointer.log)
                return
        problem = await self._lost()
        if problem is not None:
            raise _LostLog(problem)

    async def _has_last_batch(self) -> bool:
        """Or another one in its place."""
        return self.committed.last_batch is not None and await self._get(log_path(self._next_number - 1)) is not None

    async def _read_to_end(self) -> None:
        first = self._next_number
        while True:
            node = await self._get(log_path(self._next_number))
            if node is not None:
                # Another controller may have gone on from an older copy, with offsets that fit.
                problem = await self._lost() if self._next_number == first else None
                if problem is not None:
                    raise _LostLog(problem)
                self._deliver_node(node)
            elif not await self._load_if_behind():
                return

    async def _load_if_behind(self) -> bool:
        """Load the snapshot if the log before it may be gone already. Whether there is anything more to read."""
        pointer = SnapshotPointer.of(await self._get(SNAPSHOT))
        known = self.committed.snapshot
        if not pointer.is_set or (known is not None and pointer.name <= known.name):
            return False
        snapshot = await self._read_snapshot(pointer)
        if snapshot is None:
            return True
        if pointer.log <= self._next_number:
            self.committed.shorten(snapshot)
        else:
            self._take_snapshot(snapshot, pointer.log)
        return True

    async def _read_snapshot(self, pointer: SnapshotPointer) -> Snapshot | None:
        """None if it was replaced meanwhile. If not, somebody else has deleted parts of it."""
        parts = [await self._get(part_path(pointer.id, number)) for number in range(pointer.parts)]
        data = [part.data for part in parts if part is not None]
        if len(data) == pointer.parts:
            return Snapshot(pointer.name, b"".join(data))
        if pointer == self._incomplete:
            logger.error("parts of the snapshot %s are missing in ZooKeeper: see docs/cluster.md", pointer.id)
            await self._pause()
        self._incomplete = pointer
        return None

    def _take_snapshot(self, snapshot: Snapshot, log: int) -> None:
        self.committed.load(snapshot)
        self._next_number = log
        # What was sent is in the snapshot, or is not.
        self._appends.give_up_sent("another controller has replaced the log by a snapshot")
        if self._follower is not None:
            self._follower.on_snapshot(snapshot)

    def _deliver_node(self, node: Node) -> None:
        if self._appends.has_sent(self._next_number, node.data):
            self._deliver_sent()
        else:
            self._commit(batch_in(node.data))

    def _deliver_sent(self) -> None:
        entry = self._appends.pop_written()
        self._commit(entry.batch)
        entry.confirm()

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
        is_own = leader is not None and leader.node_id == self.node_id
        if is_own and not self._is_own_logged:
            logger.info(
                "this controller waits: ZooKeeper has a session of the active one, which has node.id %d too. If it is "
                "that of its last process, it is over in at most %d ms",
                self.node_id,
                self._zookeeper.session_timeout_ms,
            )
        self._is_own_logged = is_own
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
        problem = await self._lost() or await self._gap()
        node = await self._get(EPOCH)
        problem = problem or self._wrong_epoch(node)
        self._tell_lost(problem)
        if problem is not None or node is None:
            await self._pause()
            return
        leader = Leader(self.node_id, int(node.data) + 1, self._address)
        winning: list[Operation] = [
            Create(CONTROLLER, encode_leader(leader), is_ephemeral=True),
            SetData(EPOCH, str(leader.epoch).encode(), node.version),
        ]
        if await self._multi(winning) is not None:
            return
        self._epoch, self._epoch_version = leader.epoch, node.version + 1
        try:
            await self._sync()
            await self._read_to_end()
            await self._open_epoch()
            if self._wants_office:
                self._is_in_office = self._must_check_office = True
                self._note_leader(leader)
                await self._act()
        except _LostLog:
            await self._is_office_free()  # others may have the whole log: the node of this session goes
            raise
        except _Fenced as fenced:
            self._leave(str(fenced))
            await self._pause()

    async def _lost(self) -> str | None:
        """What is missing of that which this controller has read: somebody has deleted it, or restored an older copy.

        It does not go on from there, since brokers have acted on the rest too.
        """
        number, last = self._next_number, self.committed.last_batch
        if number == 0 or last is None:
            return None  # a snapshot alone was read, with this connection
        path = log_path(number - 1)
        node = await self._get(path)
        if node is not None:
            return None if last == batch_in(node.data) else f"the node {path} is not the one that was read"
        # In this order: if the log is cut meanwhile, the pointer tells.
        following = await self._get(log_path(number))
        pointer = SnapshotPointer.of(await self._get(SNAPSHOT))
        is_cut = pointer.log > number or (pointer.log == number and following is not None)
        return None if is_cut else f"the node {path} is gone"

    async def _gap(self) -> str | None:
        """Whether the log goes on behind the end that was read. What was written into the gap would be the end of it:
        the batches behind that have other offsets."""
        number = self._next_number
        names = _answer(await self._zookeeper.children(LOG)) or ()
        if not any(name.isdigit() and int(name) >= number for name in names):
            return None
        await self._read_to_end()
        return None if self._next_number > number else f"the node {log_path(number)} is gone, and there are later ones"

    def _wrong_epoch(self, node: Node | None) -> str | None:
        """With an epoch that the log has had already, the next batch could be read by no controller."""
        least = self.committed.last_epoch
        if node is None:
            return f"the node {EPOCH} is gone; {self._epoch_repair}"
        if not node.data.isdigit():
            return f"the node {EPOCH} has no number; {self._epoch_repair}"
        return f"the node {EPOCH} has {int(node.data)}; {self._epoch_repair}" if int(node.data) < least else None

    @property
    def _epoch_repair(self) -> str:
        return f"if all else is there, set it to {self.committed.last_epoch}"

    def _tell_lost(self, problem: str | None) -> None:
        """Once, and this controller waits for it: with a restart it would go on from what is there."""
        if problem is not None and problem != self._lost_part:
            logger.error(
                "this controller cannot go on from the metadata log in ZooKeeper: %s. It waits until the data of "
                "ZooKeeper is restored: see docs/cluster.md",
                problem,
            )
        elif problem is None and self._lost_part is not None:
            logger.info("the metadata log in ZooKeeper is complete again")
        self._lost_part = problem

    async def _pause(self) -> None:
        over: Promise[None] = Promise()
        self._scheduler.call_later_ms(RETRY_MS, lambda: over.resolve(None))
        await over

    async def _open_epoch(self) -> None:
        now_ms = self._scheduler.now_ms()
        batches = self.committed.first_batches(self.node_id, self._epoch, self._voters, timestamp_ms=now_ms)
        self._appends.add(batches, self._epoch)
        await self._write_queue()

    async def _act(self) -> None:
        """Do the work of the active controller, until it leaves its office."""
        snapshots = StoredSnapshots(self.committed, self._get, self._step, lambda: self._next_number)
        while self._is_in_office:
            self._news = Promise()
            if self._must_check_office:
                await self._check_office()
            elif self._appends.are_waiting:
                await self._write_queue()
            elif self._job is not None:
                await self._do(self._job, snapshots)
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

    async def _write_queue(self) -> None:
        while self._appends.are_waiting:
            await self._write([*self._checks(), *self._appends.send(self._next_number)])

    def _checks(self) -> list[Operation]:
        operations: list[Operation] = [Check(EPOCH, self._epoch_version)]
        if self._next_number > 0:
            operations.append(Check(log_path(self._next_number - 1), 0))
        return operations

    async def _write(self, operations: Sequence[Operation]) -> None:
        count = self._appends.sent_count
        self._expect_answer()
        refused = await self._multi(operations)
        self._answered()
        if self._appends.sent_count < count:
            raise _Fenced("an answer came after the time of a session")
        if refused is not None:
            reason = f"an append was refused ({refused.reason.value}: {operations[refused.position].path})"
            self._leave(reason)  # first: whoever gets the answer is not to take this controller for the active one
            self._answered()
            self._appends.fail_sent("another controller is active")
            raise _Fenced(reason)
        while self._appends.sent_count:
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
        self._appends.give_up_sent("ZooKeeper has not answered for the time of a session")

    def _leave(self, reason: str) -> None:
        """Leave the office. Nothing that was decided in it is written from here on."""
        self._answered()
        if self._is_in_office:
            logger.info("this controller is not active any more: %s", reason)
            self._is_in_office = False
            self._note_leader(None)
        self._appends.fail_waiting(reason)
        if self._job is not None:
            job, self._job = self._job, None
            job.promise.resolve(no_longer_active(reason))
        if self._appends.sent_count:
            self._silence = self._scheduler.call_later_ms(self._zookeeper.session_timeout_ms, self._on_silence)

    # Snapshots

    async def _do(self, job: _Job, snapshots: StoredSnapshots) -> None:
        error: KafkaError | None = None
        try:
            await snapshots.store(job.snapshot)
        except NotStored as failure:
            logger.warning("%s", failure)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure))
        if self._job is job:
            self._job = None
            job.promise.resolve(error)

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
            raise NotStored(f"the snapshot of the metadata is not stored ({refused.reason.value}: {path})")
        await self._write_queue()

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
