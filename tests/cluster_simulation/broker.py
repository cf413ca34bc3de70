"""A broker with one replica: the machine with its disk, and the process that runs on it until it is killed."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncelog.cluster.cluster_config import FetchLimits
from oncelog.cluster.follower import LeaderFetcher
from oncelog.cluster.follower_session import FollowedPartition
from oncelog.cluster.isr_changes import IsrChanges, PartitionKey
from oncelog.cluster.partition import CommitPolicy, EndOfLog, Partition
from oncelog.cluster.partition_state import PartitionState, Role
from oncelog.cluster.replica_fetch import Fetcher, answer_replica
from oncelog.cluster.replicas import ProposalReaction, ReplicaRules
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId, TopicPartition
from oncelog.core.steps import at_once
from oncelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetSpec,
)
from oncelog.server.fetch_session import FetchSessionCache, FetchTarget
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from tests.cluster_simulation.controller import Controller, Entry, Registration
from tests.cluster_simulation.network import CONTROLLER, Node, Reply
from tests.unit.storage.log_harness import headers_in

if TYPE_CHECKING:
    from tests.cluster_simulation.history import World

TOPIC_ID = uuid.UUID(int=7)
FOLLOWED = FollowedPartition("orders", TOPIC_ID, 0)
KEY = PartitionKey(TOPIC_ID, 0)
PARTITION = TopicPartition("orders", 0)
LAG_MS = 2000
PARK_MS = 200
MIN_ISR = 2
CONFIG = LogConfig(segment_bytes=6000, index_interval_bytes=500, min_insync_replicas=MIN_ISR)
SESSIONS = 4
"""Fetch sessions that a leader keeps. Those of followers that have ended take up room, so that some get none."""
LIMITS = FetchLimits(max_bytes=2000, backoff_ms=100, socket_timeout_ms=5000)
_numbers = itertools.count(1)


class Machine:
    """What stays when a process ends."""

    def __init__(self, node: NodeId, folder: Path) -> None:
        self.node = node
        self.folder = folder / str(node)
        self.folder.mkdir()
        self.process: Process | None = None
        self.checkpointed = 0
        self.recovery_point: int | None = None
        self.durable_end = 0
        """Below it, batches were once on disk and have not been cut off since. A new process may know of less."""
        self.log_start_offset: int | None = None
        self.was_clean = False
        """The last process has ended in order."""
        self.is_unclean = False
        """It has lost what was not on disk, and the controller does not know yet."""

    def open_log(self, now_ms: int) -> Log:
        place = LogPlace(self.folder / str(PARTITION), PARTITION, now_ms)
        if not place.folder.exists():
            return Log.create(place, CONFIG, TOPIC_ID)
        return Log(
            place,
            CONFIG,
            clean=self.was_clean,
            log_start_offset=self.log_start_offset,
            recovery_point=self.recovery_point,
        )

    def remove_log(self) -> None:
        """Another broker keeps the partition now."""
        shutil.rmtree(self.folder / str(PARTITION))
        self.checkpointed = self.durable_end = 0
        self.recovery_point = self.log_start_offset = None
        self.was_clean = False

    def end_process(self, *, keep: Callable[[int, int], int] | None = None, clean: bool = False) -> None:
        """`keep` chooses how many bytes a power cut leaves, between those that are durable and all."""
        process, self.process = self.process, None
        if process is None:
            return
        process.is_alive = False
        log = process.log
        self.was_clean = clean
        if clean:
            log.close(clean=True)
            self.checkpointed = self.checkpointed if process.partition is None else process.partition.high_watermark
            self.durable_end = log.log_end_offset
            self.recovery_point, self.log_start_offset = log.recovery_point, log.log_start_offset
            return
        self.recovery_point, self.log_start_offset = log.recovery_point, log.log_start_offset
        self.durable_end = max(log.durable_offset, min(self.durable_end, process.lowest_end))
        paths = [segment.log_file.path for segment in log.segments]
        log.close(clean=False)
        if keep is not None:
            self._lose_power(paths, keep)

    def _lose_power(self, paths: list[Path], keep: Callable[[int, int], int]) -> None:
        headers = [header for path in paths for header in headers_in(path.read_bytes())]
        safe = sum(header.size_bytes for header in headers if header.base_offset < self.durable_end)
        left = keep(safe, sum(header.size_bytes for header in headers))
        for path in paths:
            content = path.read_bytes()
            path.write_bytes(content[:left])
            if left <= 0 and path != paths[0]:
                path.unlink()
            left = max(0, left - len(content))


class Flushes:
    """As `server.flusher`: what counts is on disk, a moment later."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_running = False

    def stored_end(self, log: Log) -> int:
        return log.durable_offset

    def on_append(self, partition: Partition) -> None:
        if self._is_running:
            return
        self._is_running = True
        work = partition.log.prepare_flush(batches_only=True)

        def finish() -> None:
            self._is_running = False
            if partition.closed:
                return
            if work is not None:
                work.run()
                partition.log.finish_flush(work)
            partition.update_high_watermark()
            if not self._process.is_flushed:
                self.on_append(partition)

        self._process.later(self._process.world.random.randrange(1, 30), finish)


class Process:
    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.node = machine.node
        self.incarnation = next(_numbers)
        self.is_alive = True
        self.paused_until_ms = 0
        self.broker_epoch = -1
        self.log = machine.open_log(world.clock.now_ms())
        self.partition: Partition | None = None
        self.shown_end = 0
        """Below it, batches could be read here."""
        self.stable_end = 0
        """Below it, it was decided what was committed and what not."""
        self.seen_end = 0
        self.lowest_end = self.log.log_end_offset
        self._policy: CommitPolicy = Flushes(self) if world.with_fsync else EndOfLog()
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._sessions = FetchSessionCache(SESSIONS, SESSIONS, lambda: next(_numbers))
        self._isr_changes = IsrChanges(self.node)
        self._registrations: dict[int, Registration] = {}
        self._applied = -1
        self._pump_ms: int | None = None

    @property
    def is_flushed(self) -> bool:
        return self.partition is None or self.partition.is_flushed

    # Time and messages

    def receive(self, act: Callable[[], None]) -> None:
        """A paused process does it when it goes on; one that has ended, never."""
        if not self.is_alive:
            return
        wait_ms = self.paused_until_ms - self.world.clock.monotonic_ms()
        if wait_ms > 0:
            self.world.clock.call_later_ms(wait_ms, lambda: self.receive(act))
            return
        act()
        if self.is_alive:
            self.world.judge.observe(self)
            self._pump()

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self.world.clock.call_later_ms(delay_ms, lambda: self.receive(act))

    def _call(self, target: int, handle: Callable[[Any, Reply], None], done: Reply, failed: Callable[[], None]) -> None:
        self.world.network.call(self, (self.node, target), handle, done, failed)

    def _ask(self, act: Callable[[Controller], Any], done: Reply, failed: Callable[[], None]) -> None:
        self._call(CONTROLLER, lambda node, reply: reply(act(node)), done, failed)

    # Life

    def start(self) -> None:
        self.world.network.nodes[self.node] = self
        is_unclean = self.machine.is_unclean
        self._ask(
            lambda controller: controller.register(self.node, self.incarnation, is_unclean=is_unclean),
            self._registered,
            lambda: self.later(200, self.start),
        )

    def _registered(self, epoch: int) -> None:
        if self.broker_epoch >= 0:
            return
        self.broker_epoch = epoch
        self.machine.is_unclean = False
        self._pull()
        self._beat()
        self._shrink()
        self._write_down()

    def _beat(self) -> None:
        epoch, applied = self.broker_epoch, self._applied
        self._ask(lambda controller: controller.heartbeat(self.node, epoch, applied), lambda _: None, lambda: None)
        self.later(500, self._beat)

    def _write_down(self) -> None:
        """The checkpoint of the high watermark, and now and then a flush."""
        if self.partition is not None:
            self.machine.checkpointed = self.partition.high_watermark
            if self.world.random.random() < 0.3:
                self.log.flush()
        self.later(1000, self._write_down)

    # Metadata

    def _pull(self) -> None:
        applied = self._applied

        def again() -> None:
            self.later(self.world.random.randrange(10, 100), self._pull)

        def done(found: tuple[int, list[Entry]]) -> None:
            self._apply(*found)
            again()

        self._ask(lambda controller: (len(controller.log) - 1, controller.log[applied + 1 :]), done, again)

    def _apply(self, last: int, entries: list[Entry]) -> None:
        if last <= self._applied:
            return
        # What a broker has not seen before it starts with as a snapshot, and several changes may come as one.
        is_one = self.partition is None or self.world.random.random() < 0.5
        news = entries[-1:] if is_one else entries[len(entries) - (last - self._applied) :]
        self._applied = last
        for entry in news:
            self._registrations = entry.brokers
            self._become(entry)
        self._follow_metadata()

    def _become(self, entry: Entry) -> None:
        state, now_ms = entry.state, self.world.clock.monotonic_ms()
        epoch_before = -1 if self.partition is None or not self.partition.is_leader else self.partition.leader_epoch
        if self.node not in state.replicas:
            self._remove(state)
            return
        if self.partition is None:
            self.partition = Partition(
                self.log,
                state,
                self.node,
                self._policy,
                checkpointed=self.machine.checkpointed,
                rules=ReplicaRules(lambda broker: self._registrations.get(broker), LAG_MS),
                now_ms=now_ms,
            )
        elif state.partition_epoch > self.partition.state.partition_epoch:
            self.partition.become(state, now_ms)
        if self.partition.is_leader and self.partition.leader_epoch != epoch_before:
            self.world.judge.on_elected(self)
        self.world.judge.observe(self)

    def _remove(self, state: PartitionState) -> None:
        """As `server.replication` does with what is kept elsewhere now, and a start with what it finds."""
        if self.partition is not None:
            self.partition.become(state, self.world.clock.monotonic_ms())
            self.partition.close()
            self.partition = None
        self.log.close(clean=False)
        self.machine.remove_log()
        self.log = self.machine.open_log(self.world.clock.now_ms())
        self.shown_end = self.stable_end = self.seen_end = self.lowest_end = 0

    def _follow_metadata(self) -> None:
        partition = self.partition
        leader = partition.state.leader if partition is not None and partition.role is Role.FOLLOWER else -1
        for node, fetcher in self._fetchers.items():
            if node != leader:
                fetcher.forget(FOLLOWED)
        if partition is not None and leader >= 0:
            fetcher = self._fetchers.setdefault(leader, LeaderFetcher(self.node, LIMITS))
            fetcher.follow(FOLLOWED, partition, partition.leader_epoch)
        self._expand()

    # The ISR

    def _expand(self) -> None:
        replicas = self.partition.replicas if self.partition is not None else None
        if self.partition is None or replicas is None:
            return
        partition = self.partition
        if replicas.propose_expansion(partition.high_watermark, self.broker_epoch, partition.log_start_offset):
            self._isr_changes.submit(KEY, replicas)

    def _shrink(self) -> None:
        partition = self.partition
        if partition is not None and partition.replicas is not None:
            now_ms = self.world.clock.monotonic_ms()
            if partition.replicas.propose_shrink(partition.log_end_offset, self.broker_epoch, now_ms):
                self._isr_changes.submit(KEY, partition.replicas)
            partition.update_high_watermark()
        self.later(LAG_MS // 2, self._shrink)

    # What is sent

    def _pump(self) -> None:
        now_ms = self.world.clock.monotonic_ms()
        for leader, fetcher in self._fetchers.items():
            sent = fetcher.poll(now_ms, self.broker_epoch)
            if sent is not None:
                self._fetch(leader, fetcher, sent.number, sent.request)
            wake_ms = fetcher.wake_ms(now_ms)
            if wake_ms is not None:
                self._pump_at(max(wake_ms, now_ms + 1))
        change = self._isr_changes.poll(now_ms, self.broker_epoch)
        if change is not None:
            number, request = change
            self._ask(
                lambda controller: controller.alter_partition(request),
                lambda response: self._altered(number, response),
                lambda: self._isr_changes.on_failure(number, self.world.clock.monotonic_ms()),
            )
        if not self._isr_changes.is_idle:
            self._pump_at(max(self._isr_changes.wake_ms or 0, now_ms + 1))

    def _pump_at(self, when_ms: int) -> None:
        if self._pump_ms is not None and self._pump_ms <= when_ms:
            return
        self._pump_ms = when_ms

        def pump() -> None:
            if self._pump_ms == when_ms:
                self._pump_ms = None

        self.later(when_ms - self.world.clock.monotonic_ms(), pump)

    def _altered(self, number: int, response: Any) -> None:
        changed = self._isr_changes.on_response(number, response, self.world.clock.monotonic_ms())
        if changed and self.partition is not None:
            self.partition.update_high_watermark()
            if changed.get(KEY) is ProposalReaction.COMMIT:
                self._expand()

    def _fetch(
        self, leader: int, fetcher: LeaderFetcher, number: int, request: FetchRequest | ListOffsetsRequest
    ) -> None:
        def done(response: FetchResponse | ListOffsetsResponse) -> None:
            clock = self.world.clock
            if isinstance(response, FetchResponse):
                fetcher.on_fetch(number, response, clock.monotonic_ms(), clock.now_ms())
            else:
                fetcher.on_offsets(number, response, clock.monotonic_ms(), clock.now_ms())
            reasons = [reason for reason in fetcher.halted().values() if not reason.endswith("is over")]
            assert not reasons, reasons

        def handle(node: Process, reply: Reply) -> None:
            node.serve(request, reply)

        self._call(leader, handle, done, lambda: fetcher.on_failure(number, self.world.clock.monotonic_ms()))

    # What is answered

    def serve(self, request: FetchRequest | ListOffsetsRequest, reply: Reply) -> None:
        if isinstance(request, ListOffsetsRequest):
            reply(self._offsets(request))
            return
        try:
            session, (target,), is_incremental = at_once(self._sessions.begin(request, self.world.clock.monotonic_ms()))
        except KafkaError as error:
            reply(FetchResponse(error_code=error.code))
            return

        def answer(data: PartitionData) -> None:
            is_left_out = is_incremental and not target.is_news(data)
            if not is_left_out:
                target.note(data)
                data.records = self._cut(bytes(data.records or b""))
            topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
            session_id = 0 if session is None else session.session_id
            reply(FetchResponse(session_id=session_id, responses=[] if is_left_out else [topic]))

        data = self._answer(request, target, is_repetition=False)
        self._expand()
        if data.error_code or data.records or data.diverging_epoch.epoch >= 0 or self.partition is None:
            answer(data)
        else:
            self._park(self.partition, lambda: answer(self._answer(request, target, is_repetition=True)))

    def _cut(self, records: bytes) -> bytes:
        """As Java's leaders do at the limit that they are given: anywhere behind the first batch."""
        if self.world.random.random() < 0.5 or not records:
            return records
        return records[: self.world.random.randint(headers_in(records)[0].size_bytes, len(records))]

    def _answer(self, request: FetchRequest, wanted: FetchTarget, *, is_repetition: bool) -> PartitionData:
        fetcher = Fetcher(NodeId(request.replica_state.replica_id), request.replica_state.replica_epoch)
        try:
            if self.partition is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            now_ms = self.world.clock.monotonic_ms()
            return answer_replica(
                self.partition, wanted, fetcher, now_ms=now_ms, max_bytes=1 << 20, is_repetition=is_repetition
            )
        except KafkaError as error:
            return PartitionData(partition_index=0, error_code=error.code, high_watermark=-1, records=b"")

    def _park(self, partition: Partition, answer: Callable[[], None]) -> None:
        token = next(_numbers)
        was_parked = [True]

        def wake() -> None:
            if was_parked.pop() if was_parked else False:
                partition.unwatch(token)
                self.later(0, answer)

        partition.watch(token, wake)
        self.later(PARK_MS, wake)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        wanted = request.topics[0].partitions[0]
        answer = ListOffsetsPartitionResponse(partition_index=0)
        try:
            if self.partition is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self.partition.check_leader_epoch(wanted.current_leader_epoch)
            self.partition.check_leads()
            is_end = wanted.timestamp == OffsetSpec.LATEST
            answer.offset = self.partition.log_end_offset if is_end else self.partition.log_start_offset
        except KafkaError as error:
            answer.error_code = error.code
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[answer])])


def as_process(node: Node) -> Process:
    assert isinstance(node, Process)
    return node
