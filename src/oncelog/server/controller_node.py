"""A controller at work: requests wait for their round, rounds are appended to the metadata log, answers follow.

`controller.machine` decides, `cluster.metadata_log` keeps what was decided, this joins the two. One round is on its way
at a time; what comes meanwhile is decided in the next one, in one batch as far as a round goes. A controller that is
not active answers NOT_CONTROLLER.

Whatever takes long is done in slices, between which others have their turn: a round is decided and encoded, then it is
appended in one piece; what is committed is applied. Only then are its requests answered and the next round begins.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final
from uuid import UUID

from oncelog.cluster.committed_log import Snapshot
from oncelog.cluster.kraft_metadata import SnapshotName
from oncelog.cluster.metadata_log import MetadataLog, no_longer_active
from oncelog.cluster.quorum_log import Leader
from oncelog.controller.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from oncelog.controller.decision import Requester
from oncelog.controller.image import Image
from oncelog.controller.image_records import versioned
from oncelog.controller.machine import Machine, Round
from oncelog.controller.metadata_batches import each_record
from oncelog.core.clock import Scheduler
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once, take_slice
from oncelog.core.worker import Worker
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.protocol.messages.cluster_metadata import (
    ConfigRecord,
    RegisterControllerRecord,
    encode_metadata_record,
)
from oncelog.protocol.schema import Message
from oncelog.server.peers import Pump

log = logging.getLogger("oncelog.server")

SNAPSHOT_BYTES: Final = 20 << 20
"""As metadata.log.max.record.bytes.between.snapshots."""
SNAPSHOT_BATCHES: Final = 5_000
SNAPSHOT_RETRY_MS: Final = 60_000
WAITING_MAX: Final = 10_000
"""Requests. More are refused."""
SLICE_MS: Final = 5
ROUND_MS: Final = 100
"""A round takes no further request after this time: heartbeats wait for its end too."""
ROUND_RECORDS: Final = 10_000
"""A round with so many records, the most that Kafka has in a batch, is not added to. One request may have more."""
LOOKS_PER_SESSION: Final = 8
"""How often within the time of a session the active controller looks for brokers that are silent."""
RETRY_MS: Final = 1_000
"""The pause before the controller's own work is tried again after an append that failed."""
_UNCLEAN: Final = "unclean.leader.election.enable"


class _Asked(NamedTuple):
    what: object
    decide: Callable[[Round, int], Generator[None, None, Any]]
    """In a round that began at a time. Returns the answer, or raises KafkaError."""
    promise: Promise[Any]


_Steps = Generator[None, None, None]
_Answers = list[tuple[Promise[Any], Any]]


class ControllerNode:
    """A `metadata_log.Follower`."""

    def __init__(
        self,
        metadata_log: MetadataLog,
        machine: Machine,
        scheduler: Scheduler,
        worker: Worker,
        incarnation: UUID,
        listener: Listener,
    ) -> None:
        self.log = metadata_log
        self.machine = machine
        self._scheduler = scheduler
        self._worker = worker
        self._incarnation = incarnation
        self._listener = listener
        self._waiting: deque[_Asked] = deque()
        self._in_round: list[_Asked] = []
        """Those that are being decided."""
        self._deciding: _Steps | None = None
        self._applying: _Steps | None = None
        self._unapplied: deque[bytes] = deque()
        """Batches that are committed."""
        self._when_idle: deque[Callable[[], None]] = deque()
        """What waits until nothing is being decided or applied."""
        self._is_appending = False
        self._is_serving = False
        self._is_storing = False
        self._next_snapshot_ms = 0
        self._watched_ms = 0
        """When sessions were last looked at."""
        settings = machine.config.settings
        self._elects_preferred = settings.boolean("auto.leader.rebalance.enable")
        self._elections_ms = settings.integer("leader.imbalance.check.interval.seconds") * 1000
        self._elections_due_ms = 0
        self._rounds = Pump(scheduler, self._run_round)
        self._clock = Pump(scheduler, self._watch_clock)
        self.on_news: Callable[[], None] = lambda: None
        """Called when more is committed and applied, or another controller is active."""
        self.active: Promise[None] = Promise()
        """This controller serves as the active one or knows who does, for the first time."""

    def start(self) -> None:
        """Raises KafkaError, InvalidMetadata or OSError."""
        self.log.start(self)
        self.log.campaign()

    def stop(self) -> None:
        self._rounds.stop()
        self._clock.stop()
        self.log.close()
        self._leave()

    # The log

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._apply_at_once()
        loaded = decode_checkpoint(snapshot.data)
        self.machine.load(loaded.image, snapshot.name.end_offset)
        self.machine.kraft_version = loaded.quorum.kraft_version

    def on_committed(self, batch: bytes) -> None:
        self._unapplied.append(batch)
        if self._applying is None:
            self._applying = self._apply()
            if self._is_serving:
                self._apply_on()
        if not self._is_serving:
            self._apply_at_once()  # of a log that is being read, or that another controller writes

    def _apply(self) -> _Steps:
        while self._unapplied:
            records = each_record(self._unapplied.popleft())
            yield from self.machine.apply_in_steps((offset, record.known()) for offset, record in records)
        self.machine.kraft_version = self.log.committed.quorum.kraft_version

    def _apply_on(self) -> None:
        if self._applying is not None and take_slice(self._applying, self._scheduler, SLICE_MS, self._apply_on):
            self._applied()

    def _apply_at_once(self) -> None:
        if self._applying is not None:
            at_once(self._applying)
            self._applied()

    def _applied(self) -> None:
        self._applying = None
        self.on_news()
        self._do_what_waits()

    def on_leader(self, leader: Leader | None) -> None:
        self._apply_at_once()
        if leader is not None and self.log.is_active:
            log.info("controller %d is active in epoch %d", leader.node_id, leader.epoch)
            self._take_office()
        else:
            self._leave()
            if leader is not None and not self.active.done:
                self.active.resolve(None)
        self.on_news()

    def _take_office(self) -> None:
        machine = self.machine
        machine.activate(self._scheduler.monotonic_ms())
        registration = RegisterControllerRecord(
            controller_id=machine.config.node_id,
            incarnation_id=self._incarnation,
            end_points=[self._listener],
            features=list(machine.config.features),
        )

        def begun(result: int | KafkaError) -> None:
            if not self.log.is_active:
                return
            if isinstance(result, KafkaError):
                log.error("the controller cannot begin, and tries it again: %s", result.message)
                self._scheduler.call_later_ms(RETRY_MS, self._begin_again)
                return
            self._is_serving = True
            self._watched_ms = self._scheduler.monotonic_ms()
            self._elections_due_ms = self._watched_ms + self._elections_ms
            self._rounds.kick()
            self._clock.kick()
            if not self.active.done:
                self.active.resolve(None)

        # In one append: a cluster without its features is none.
        level = machine.view.image.metadata_version
        records = [*machine.bootstrap_records(), registration]
        self.log.append([versioned(record, level) for record in records]).then(begun)

    def _begin_again(self) -> None:
        if self.log.is_active and not self._is_serving:
            self._take_office()

    def _leave(self) -> None:
        self._is_serving = False
        self._deciding = None
        waiting = [*self._in_round, *self._waiting]
        self._in_round = []
        self._waiting.clear()
        for asked in waiting:
            asked.promise.resolve(no_longer_active())
        self._do_what_waits()

    # Slices

    @property
    def _is_busy(self) -> bool:
        return self._is_appending or self._deciding is not None or self._applying is not None

    @property
    def is_applied(self) -> bool:
        """Whether the machine knows all that is committed."""
        return self._applying is None

    def _do_what_waits(self) -> None:
        while self._when_idle and self._deciding is None and self._applying is None:
            self._when_idle.popleft()()

    # Requests

    def ask(self, request: Message, who: Requester) -> Promise[Message | KafkaError]:
        """The answer, when what it says is committed."""
        if len(self._waiting) >= WAITING_MAX:
            return Promise.resolved(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many requests wait for the controller")
            )
        return self._wait(request, lambda current, now_ms: current.decide(request, who, now_ms))

    def add(self, records: Callable[[Image], Sequence[Message]]) -> Promise[KafkaError | None]:
        """Append records that answer no request. They are made in a round, from the image with all that came before."""
        return self._wait(records, lambda current, _: current.take(records))

    def _wait(self, what: object, decide: Callable[[Round, int], Generator[None, None, Any]]) -> Promise[Any]:
        if not self._is_serving:
            return Promise.resolved(no_longer_active())
        promise: Promise[Any] = Promise()
        self._waiting.append(_Asked(what, decide, promise))
        self._rounds.kick()
        return promise

    def _run_round(self) -> None:
        if self._is_busy or not self._is_serving or not self._waiting:
            return
        current, answers, values = self.machine.round(self.log.next_offset), _Answers(), list[bytes]()
        self._deciding = steps = self._decide(current, answers, values)

        def go_on() -> None:
            if self._deciding is not steps:
                return  # the office was lost meanwhile
            try:
                if not take_slice(steps, self._scheduler, SLICE_MS, go_on):
                    return
            except Exception:
                log.exception("a round of the controller failed; its requests are refused")
                answers[:] = [(asked.promise, _failed()) for asked in self._in_round]
                values.clear()
            self._deciding, self._in_round = None, []
            self._commit(values, answers)
            self._do_what_waits()

        go_on()

    def _decide(self, current: Round, answers: _Answers, values: list[bytes]) -> _Steps:
        """Fills in the answers, and the records as they are written."""
        now_ms = self._scheduler.monotonic_ms()
        level = self.machine.view.image.metadata_version
        while self._waiting and len(current.records) < ROUND_RECORDS:
            asked = self._waiting.popleft()
            self._in_round.append(asked)
            answers.append((asked.promise, (yield from _answer(current, asked, now_ms))))
            yield
            if self._scheduler.monotonic_ms() - now_ms > ROUND_MS:
                break
        if any(type(record) is ConfigRecord and record.name == _UNCLEAN for record in current.records):
            current.elect_unclean()
        # Here too: while there is always something to write, the clock never finds a moment between two appends.
        try:
            self._do_recurring_work(current, now_ms)
        except Exception:
            log.exception("sessions and elections could not be looked at; requests are answered all the same")
        for record in current.records:
            values.append(encode_metadata_record(*versioned(record, level)))
            yield

    def _commit(self, values: Sequence[bytes], answers: _Answers) -> None:
        def committed(result: int | KafkaError) -> None:
            self._when_idle.append(lambda: finished(result))
            self._do_what_waits()

        def finished(result: int | KafkaError) -> None:
            self._is_appending = False
            for promise, answer in answers:
                promise.resolve(result if isinstance(result, KafkaError) else answer)
            self._rounds.kick()
            self._clock.kick(RETRY_MS if isinstance(result, KafkaError) else 0)
            self._store_snapshot_if_long()

        if values:
            self._is_appending = True
            self.log.append(values).then(committed)
        else:
            committed(0)

    # Time

    def _watch_clock(self) -> int | None:
        if not self._is_serving or self._is_busy:
            return None
        now_ms = self._scheduler.monotonic_ms()
        current = self.machine.round(self.log.next_offset)
        self._do_recurring_work(current, now_ms)
        if current.records:
            level = self.machine.view.image.metadata_version
            self._commit([encode_metadata_record(*versioned(record, level)) for record in current.records], [])
            return None
        expiry_ms = self.machine.heartbeats.next_expiry_ms
        due_ms = self._elections_due_ms if expiry_ms is None else min(expiry_ms, self._elections_due_ms)
        return min(due_ms - now_ms, self._interval_ms)

    @property
    def _interval_ms(self) -> int:
        return max(1, self.machine.heartbeats.session_ms // LOOKS_PER_SESSION)

    def _do_recurring_work(self, current: Round, now_ms: int) -> None:
        """Fences brokers that are silent, and holds the elections that recur."""
        self._excuse_silence(now_ms)
        current.fence_silent(now_ms)
        if now_ms >= self._elections_due_ms:
            self._elections_due_ms = now_ms + self._elections_ms
            if self._elects_preferred:
                current.elect_preferred()
            current.elect_unclean()

    def _excuse_silence(self, now_ms: int) -> None:
        """Brokers are not fenced for a time in which this controller heard nobody: it was paused, or its log did not
        answer."""
        interval_ms = self._interval_ms
        absent_ms = now_ms - self._watched_ms - interval_ms
        self._watched_ms = now_ms
        if absent_ms > interval_ms:
            log.warning("this controller did not work for %d ms: brokers that were silent are not fenced", absent_ms)
            self.machine.heartbeats.excuse(absent_ms, now_ms)

    # Snapshots

    def _store_snapshot_if_long(self) -> None:
        committed = self.log.committed
        if committed.bytes_since_snapshot > SNAPSHOT_BYTES or committed.batches_since_snapshot > SNAPSHOT_BATCHES:
            self.store_snapshot()

    def store_snapshot(self) -> None:
        """Store a snapshot in the place of the log before it, once all of it is applied. Nothing happens while that is
        impossible or has just failed."""
        if self._applying is not None:
            self._when_idle.append(self.store_snapshot)
            return
        if self._is_storing or not self.log.is_active or self.log.committed.is_in_transaction:
            return
        if self._scheduler.monotonic_ms() < self._next_snapshot_ms:
            return
        self._is_storing = True

        def stored(error: Exception | None) -> None:
            self._is_storing = False
            if error is not None:
                log.warning("the metadata log is not shortened: %s", error)
                # To encode everything with every commit would take the time of those who wait.
                self._next_snapshot_ms = self._scheduler.monotonic_ms() + SNAPSHOT_RETRY_MS

        def encoded(snapshot: Snapshot | Exception) -> None:
            if isinstance(snapshot, Exception) or not self.log.is_active:
                stored(snapshot if isinstance(snapshot, Exception) else no_longer_active())
            else:
                self.log.write_snapshot(snapshot).then(stored)

        self._worker.run(self._snapshot_of_now()).then(encoded)

    def snapshot(self) -> Snapshot:
        """A snapshot of what is committed. There is none within a metadata transaction."""
        self._apply_at_once()
        return self._snapshot_of_now()()

    def _snapshot_of_now(self) -> Callable[[], Snapshot]:
        """Images never change: a worker can encode this one while the next ones are made."""
        invariant(self._applying is None, "a snapshot would lack what is committed and not applied")
        committed, now_ms = self.log.committed, self._scheduler.now_ms()
        name = SnapshotName(committed.end_offset, committed.last_epoch)
        checkpoint = Checkpoint(self.machine.view.image, committed.quorum, now_ms)

        def encode() -> Snapshot:
            return Snapshot(name, encode_checkpoint(checkpoint, epoch=name.epoch, timestamp_ms=now_ms))

        return encode


def _answer(current: Round, asked: _Asked, now_ms: int) -> Generator[None, None, Any]:
    try:
        return (yield from asked.decide(current, now_ms))
    except KafkaError as error:
        return error
    except Exception:
        log.exception("a request to the controller failed: %r", asked.what)
        return _failed()


def _failed() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller failed to decide, see its log.")
