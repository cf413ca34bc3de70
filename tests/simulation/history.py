"""One history: trouble, then peace, then a look at everything.

Virtual time moves from event to event. After each event the cheap invariants are checked; the others when all is quiet.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from oncelog.core import ids
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.simulation import invariants, wire
from tests.simulation.actors import Actor
from tests.simulation.dawdler import DAWDLER_TIMEOUT_MS, Dawdler
from tests.simulation.model import Model, Violation
from tests.simulation.network import Call, Network, Weather
from tests.simulation.operators import (
    FencingAdmin,
    LateProducer,
    MarkerGhost,
    RecordDeleter,
    TopicDeleter,
    abort_hanging,
)
from tests.simulation.plan import SHORT_EPOCHS, Plan
from tests.simulation.producers import NEW_DIALECTS, OLD_DIALECTS, Dialect, IdempotentProducer, TxnProducer
from tests.simulation.readers import OffsetWatcher, Reader
from tests.simulation.small_steps import small_steps
from tests.simulation.station import CRASH_POINTS, SimulatedCrash, Station
from tests.simulation.two_phase import PARTICIPANT, Participant, Vote, settle_all
from tests.simulation.wire import Identity, Place, Seen
from tests.simulation.workers import GROUP, Worker
from tests.virtual_clock import VirtualScheduler

START_MS: Final = 1_700_000_000_000
TROUBLE_MS_MAX: Final = 60_000
SKEW_MS_MAX: Final = 1_700_000
"""Twice this is below an hour, from which on a broker refuses the timestamps of before (INVALID_TIMESTAMP)."""
TURNS_MS: Final = (0, 0, 0, 0, 0, 1, 3, 20)
"""How long work in small steps waits for its next turn."""
HALF_WAY: Final = (
    "log.append.after_write",
    "log.append.after_indexes",
    "log.append.before_txn_index",
    "txn_index.append.before_write",
    "log.roll.before_create",
    "segment.create.after_log_file",
    "log.snapshot.before_write",
    "cleaner.before_fsync",
    "cleaner.swap.before_rename",
    "checkpoint.before_rename",
)
STEPS_MAX: Final = 40_000
INPUTS: Final = 6


class History:
    def __init__(self, seed: int, folder: Path, plan: Plan | None = None, *, tracing: bool = False) -> None:
        self.seed = seed
        self.plan = plan if plan is not None else Plan.draw(seed)
        self.rng = random.Random(f"history {seed}")
        self.clock = VirtualScheduler(START_MS)
        self.model = Model()
        self.model.ids_are_forgotten = self.plan.id_expiration
        self.traced: list[str] = []
        self._tracing = tracing
        self._digest = hashlib.sha256()
        self.station = Station(
            folder,
            self.clock,
            random.Random(f"station {seed}"),
            self._settings(),
            slow_worker=self.plan.slow_worker,
            power_cuts=self.plan.power_cuts,
        )
        weather_rng = random.Random(f"weather {seed}")
        self.network = Network(self.station, weather_rng, Weather(), self.model.violated, self.trace)
        self.output_places: list[Place] = [("out", index) for index in range(self.plan.partitions)]
        self.tables: list[Place] = [("table", 0)] if self.plan.table else []
        self.places = self.output_places + self.tables
        """All that is read."""
        self.input_places: list[Place] = [("in", 0), ("in", 1)]
        self.doomed: list[Place] = [("doomed", 0)] if self.plan.doomed_topic else []
        self.votes: dict[str, Vote] = {}
        """The newest of each participant of a two-phase commit."""
        self.past_votes: list[Vote] = []
        self.topic_ids: dict[str, UUID] = {}
        self._latest_skew_ms = 0
        self._starts_before_jump = 0
        self._describe_removals()
        self.transactional_ids = [f"id-{number}" for number in range(self.plan.ids)]
        self._speaks_tv2: dict[int, bool] = {}
        self.actors: list[Actor] = []
        self.in_trouble = False
        self.steps = 0
        self.setbacks: list[str] = []
        """What producers were refused, or gave up."""
        self._begun: dict[str, int] = {}
        self._instances = 0
        self._crashes_left = 0
        self._ends: dict[Place, invariants.Ends] = {}
        self.final_view: dict[Place, list[Seen]] = {}
        """What read_committed returns when all is quiet."""
        self.view = Reader(self, "reader", wire.READ_COMMITTED)
        self.onlooker = Reader(self, "onlooker", wire.READ_UNCOMMITTED)

    def _describe_removals(self) -> None:
        removals = self.model.removals
        removals.tables = dict.fromkeys(self.tables, self.plan.tombstones_ms)
        if self.plan.retention_ms is not None:
            removals.retention_ms = dict.fromkeys(self.output_places, self.plan.retention_ms)

    def _settings(self) -> dict[str, str]:
        plan = self.plan
        settings = {
            "transaction.version": plan.transaction_version,
            "transaction.state.log.num.partitions": 2,
            "offsets.topic.num.partitions": 2,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "log.flush.offset.checkpoint.interval.ms": 3_000,
            "transaction.partition.verification.enable": str(plan.verification).lower(),
            "log.index.interval.bytes": 100,
            "oncelog.cluster.action.enable": "true",
        }
        if plan.fsyncs == "append":
            settings["log.flush.interval.messages"] = 1
        elif plan.fsyncs == "acks":
            settings["oncelog.acks.fsync"] = "true"
        if plan.compaction:
            settings["transaction.state.log.num.partitions"] = settings["offsets.topic.num.partitions"] = 1
            settings["transaction.state.log.segment.bytes"] = settings["offsets.topic.segment.bytes"] = 300
            settings["log.cleaner.backoff.ms"] = 300
            settings["log.cleaner.min.cleanable.ratio"] = "0.01"
            settings["log.cleaner.delete.retention.ms"] = 1_000
        if plan.table:
            settings["log.cleaner.backoff.ms"] = 300
        if plan.retention_ms is not None:
            settings["log.retention.check.interval.ms"] = 500
        if plan.producer_expiration_ms is not None:
            settings["producer.id.expiration.ms"] = plan.producer_expiration_ms
            settings["producer.id.expiration.check.interval.ms"] = 500
        if plan.two_phase:
            settings["transaction.two.phase.commit.enable"] = "true"
        if not plan.parking:
            settings["oncelog.parked.request.ms"] = 0
        if plan.id_expiration:
            settings["transactional.id.expiration.ms"] = 3_000
            settings["transaction.remove.expired.transaction.cleanup.interval.ms"] = 700
        return {name: str(value) for name, value in settings.items()}

    # -- telling

    def trace(self, who: str, what: str) -> None:
        self._digest.update(f"{self.clock.now_ms()} {who} {what}\n".encode())
        if self._tracing:
            self.traced.append(f"{self.clock.now_ms() - START_MS:>7} {who:<14} {what}")

    @property
    def digest(self) -> str:
        """Of everything that happened: the same seed gives the same history, or a replay is worth nothing."""
        return self._digest.hexdigest()

    # -- playing

    def play(self) -> None:
        """Raises the first Violation."""
        with self.station.installed(), short_epochs(self.plan.short_epochs), small_steps(self.plan.small_steps):
            self._prepare()
            self._trouble()
            self._make_peace()
            invariants.check_all(self)
            invariants.check_progress(self)
            self._restart(self.plan.last_start)
            invariants.check_again(self)
            self._start_over(stop=self.station.stop)
            self.station.stop()
            invariants.check_files(self)
        self._raise_first()

    def _raise_first(self) -> None:
        if self.model.problems:
            raise self.model.problems[0]
        for message in self.station.errors.messages:
            if not self.plan.disk_trouble or "InvariantError" in message or message.startswith("a request from"):
                raise Violation("no-exception", f"the broker logged: {message}")

    def _prepare(self) -> None:
        self.station.start()
        topics = [
            self._topic("out", self.plan.partitions, self._output_configs()),
            self._topic("in", len(self.input_places)),
        ]
        topics += [self._topic(topic, 1) for topic, _ in self.doomed]
        topics += [self._topic(topic, 1, self._table_configs()) for topic, _ in self.tables]
        created = self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
        self.topic_ids = {topic.name: topic.topic_id for topic in created.topics}
        if self.plan.workers:
            for place in self.input_places:
                values = [f"{place[1]}-{number}" for number in range(INPUTS)]
                data = wire.batch(values, None, -1, transactional=False, timestamp_ms=self.clock.now_ms())
                self.ask(ApiKey.PRODUCE, 12, wire.produce({place: data}))

    @staticmethod
    def _topic(name: str, partitions: int, configs: Mapping[str, object] = MappingProxyType({})) -> CreatableTopic:
        entries = [CreatableTopicConfig(name=key, value=str(value)) for key, value in configs.items()]
        return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)

    def _output_configs(self) -> dict[str, object]:
        configs: dict[str, object] = {}
        if self.plan.segment_bytes is not None:
            configs["internal.segment.bytes"] = self.plan.segment_bytes
        if self.plan.retention_ms is not None:
            configs["retention.ms"] = self.plan.retention_ms
        return configs

    def _table_configs(self) -> dict[str, object]:
        return {
            "cleanup.policy": "compact,delete" if self.plan.deletes else "compact",
            "internal.segment.bytes": 300,
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": self.plan.tombstones_ms,
        }

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """A request on a good day."""
        return self.network.ask(Call(key, version, message))

    def _trouble(self) -> None:
        plan = self.plan
        self.network.weather = plan.weather
        if plan.lag_permille:
            lag_rng = random.Random(f"lag {self.seed}")
            self.station.lag_ms = lambda: (
                lag_rng.randrange(1, plan.lag_ms_max) if lag_rng.randrange(1000) < plan.lag_permille else 0
            )
        if plan.small_steps:
            turns_rng = random.Random(f"turns {self.seed}")
            self.station.turn_ms = lambda: turns_rng.choice(TURNS_MS)
        self.in_trouble = True
        self._crashes_left = plan.crashes
        self._cast()
        self._arm()
        for _ in range(plan.clean_stops):
            self._at_random_time(lambda: self._die(clean=True))
        for _ in range(plan.client_kills):
            self._at_random_time(self._kill_a_client)
        for _ in range(plan.clock_jumps):
            self._at_random_time(self._jump)
        end_ms = START_MS + TROUBLE_MS_MAX
        while self.clock.now_ms() < end_ms and not self._all_done():
            if not self._step(end_ms):
                break
        self.in_trouble = False

    def _cast(self) -> None:
        plan = self.plan
        cast: list[Actor] = [self.view, self.onlooker]
        cast += [IdempotentProducer(self, f"plain-{number}") for number in range(plan.idempotent)]
        if plan.fencing and self.transactional_ids:
            cast.append(FencingAdmin(self, "admin"))
        if self.doomed:
            cast.append(TopicDeleter(self, "deleter"))
        if plan.deletes:
            cast.append(RecordDeleter(self, "record deleter"))
        for number in range(plan.dawdlers):
            dialect = self._dialect()
            cast.append(Dawdler(self, f"dawdler-{number}", f"dawdler-{number}", dialect, DAWDLER_TIMEOUT_MS))
        if plan.marker_ghosts:
            cast.append(MarkerGhost(self, "marker ghost"))
        for number in range(plan.late_producers):
            dialect = self.rng.choice(OLD_DIALECTS)
            cast.append(LateProducer(self, f"late-{number}", f"late-{number}", dialect, plan.txn_timeout_ms))
        groups = [GROUP] if plan.workers else []
        groups += [f"group-{name}" for name in self.transactional_ids if plan.with_group]
        cast += [OffsetWatcher(self, f"watcher of {group}", group) for group in groups]
        for actor in cast:
            self._enter(actor)
        for transactional_id in self.transactional_ids:
            for _ in range(plan.contenders):
                self._enter_producer(transactional_id)
        for number in range(plan.workers):
            self._enter_worker(f"worker-{number}")

    def _enter(self, actor: Actor) -> None:
        self.actors.append(actor)
        self.clock.call_later_ms(self.rng.randrange(100), actor.start)

    def _dialect(self) -> Dialect:
        if self.plan.transaction_version == 2 and self.rng.randrange(1000) < self.plan.new_dialect:
            return self.rng.choice(NEW_DIALECTS)
        return self.rng.choice(OLD_DIALECTS)

    def _enter_producer(self, transactional_id: str) -> None:
        self._instances += 1
        name = f"{transactional_id}.{self._instances}"
        kind, dialect = (Participant, PARTICIPANT) if self.plan.two_phase else (TxnProducer, self._dialect())
        producer = kind(self, name, transactional_id, dialect, self.plan.txn_timeout_ms)
        if self.plan.with_group:
            producer.group_id = f"group-{transactional_id}"
        producer.on_end = lambda: self._replace(lambda: self._enter_producer(transactional_id), transactional_id)
        self._enter(producer)

    def _enter_worker(self, transactional_id: str) -> None:
        self._instances += 1
        worker = Worker(
            self, f"{transactional_id}.{self._instances}", transactional_id, self._dialect(), self.plan.txn_timeout_ms
        )
        worker.on_end = lambda: self._replace(lambda: self._enter_worker(transactional_id), None)
        self._enter(worker)

    def _replace(self, enter: Any, transactional_id: str | None) -> None:
        """Somebody restarts what has ended, as long as there is work."""
        if self.in_trouble and (transactional_id is None or self._begun.get(transactional_id, 0) < self.plan.rounds):
            self.clock.call_later_ms(self.rng.randrange(10, 2_000), lambda: enter() if self.in_trouble else None)

    def wants_more(self, transactional_id: str) -> bool:
        """Whether a producer should begin another transaction."""
        begun = self._begun.get(transactional_id, 0)
        if not self.in_trouble or begun >= self.plan.rounds:
            return False
        self._begun[transactional_id] = begun + 1
        return True

    def _all_done(self) -> bool:
        if self.clock.now_ms() < START_MS + 3_000:
            return False
        if self.plan.workers and not self._all_transformed:
            return False
        workers = TxnProducer | IdempotentProducer | Dawdler
        return not any(isinstance(actor, workers) for actor in self.actors if actor.alive)

    @property
    def _all_transformed(self) -> bool:
        return all(self.model.offsets_read.get((GROUP, place), -1) >= INPUTS for place in self.input_places)

    def note_dialect(self, identity: Identity, bumps_epochs: bool) -> None:
        known = self._speaks_tv2.get(identity.producer_id, True)
        self._speaks_tv2[identity.producer_id] = known and bumps_epochs

    def speaks_tv2_only(self, producer_id: int) -> bool:
        """Whether no transaction of this id was ever run in the older protocol, which late markers can harm."""
        return self._speaks_tv2.get(producer_id, False)

    def somewhere(self, rng: random.Random) -> Place:
        """Where a producer writes next."""
        if self.doomed and rng.randrange(6) == 0:
            return rng.choice(self.doomed)
        return rng.choice(self.tables if self.tables and rng.randrange(3) else self.places)

    # -- events

    def _at_random_time(self, action: Any) -> None:
        delay_ms = self.rng.choice((2_000, 5_000, 15_000))
        self.clock.call_later_ms(self.rng.randrange(delay_ms), lambda: action() if self.in_trouble else None)

    def _kill_a_client(self) -> None:
        victims = [actor for actor in self.actors if actor.alive and isinstance(actor, TxnProducer | Worker)]
        if victims:
            self.rng.choice(victims).kill()

    def _jump(self) -> None:
        """The machine's clock is set, to a time before or after. Less than what would make timestamps unacceptable."""
        jumped_ms = self.station.skew_ms + self.rng.choice((-1, 1)) * self.rng.choice((2_000, 60_000, 1_500_000))
        self.station.skew_ms = max(-SKEW_MS_MAX, min(SKEW_MS_MAX, jumped_ms))
        self.trace("clock", f"is wrong by {self.station.skew_ms} ms")
        self._latest_skew_ms = max(self._latest_skew_ms, self.station.skew_ms)
        self._starts_before_jump = self.station.starts

    def _put_clock_right(self) -> None:
        """Later than it has ever been: a start over a clock that was set back gives open transactions more time."""
        if self.station.starts != self._starts_before_jump or self._restarts_in_peace:
            self.station.skew_ms = self._latest_skew_ms

    @property
    def _restarts_in_peace(self) -> bool:
        return self.station.broker is None or (self.plan.restart_in_peace and not self.plan.is_calm)

    def _arm(self) -> None:
        """The next death of the broker, and the troubles of its disk."""
        self.station.disarm()
        if self.plan.disk_trouble:
            rng = random.Random(self.rng.random())
            self.station.arm_disk_trouble(
                "log.append.before_write", lambda: rng.randrange(1000) < self.plan.disk_trouble
            )
            for point in HALF_WAY if self.plan.half_writes else ():
                self.station.arm_disk_trouble(
                    point, lambda: self.station.broker is not None and rng.randrange(1000) < self.plan.half_writes
                )
        if self._crashes_left <= 0:
            return
        if self.plan.crash_points and self.rng.random() < 0.75:
            often = ("log.append", "txn.")
            points = [point for point in CRASH_POINTS if point.startswith(often) or self.rng.random() < 0.3]
            point, count = self.rng.choice(points), self.rng.choice((1, 2, 3, 5, 8, 13, 21))
            self.station.arm_crash(point, count)
            self.clock.call_later_ms(20_000, self._give_up_on_crash_point(self.station.starts))
        else:
            starts = self.station.starts
            self.clock.call_later_ms(
                self.rng.randrange(1, 6_000), lambda: self._die() if self.station.starts == starts else None
            )

    def _give_up_on_crash_point(self, starts: int) -> Any:
        """A failpoint that is not met does not spare the broker."""
        return lambda: self._die() if self.in_trouble and self.station.starts == starts else None

    def _die(self, *, clean: bool = False) -> None:
        if self.station.broker is None or not self.in_trouble:
            return
        if clean:
            self.trace("broker", "is stopped")
            self.station.stop()
        else:
            self.trace("broker", "is killed")
            self.station.crash()
            self._crashes_left -= 1
        self._come_back_later()

    def _come_back_later(self) -> None:
        self.clock.call_later_ms(self.rng.randrange(1, 2_500), self._come_back)

    def _come_back(self) -> None:
        if self.station.broker is None and not self.station.is_starting:
            self._arm()
            self.trace("broker", "starts")
            try:
                self.station.start()
            except KafkaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR or not self.plan.disk_trouble:
                    raise
                self.trace("broker", "ends: it cannot write its metadata log")
                self._come_back_later()

    def _crashed(self, crash: SimulatedCrash) -> None:
        point = str(crash)
        self.trace("broker", f"dies at {point}")
        self._crashes_left -= 1
        self.station.crash(point)
        self.station.disarm()
        self._come_back_later()

    def _step(self, end_ms: int) -> bool:
        """Runs what is due next. False when there is nothing left to happen before `end_ms`."""
        due_ms = self.clock.next_due_ms()
        if due_ms is None or due_ms > end_ms:
            self.clock.advance_ms(end_ms - self.clock.now_ms())
            return False
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("nobody-waits", f"{STEPS_MAX} events and no end")
        try:
            self.clock.advance_ms(max(0, due_ms - self.clock.now_ms()))
        except SimulatedCrash as crash:
            self._crashed(crash)
        self._look()
        return True

    def _look(self) -> None:
        """What must hold at every moment."""
        self._look_at_end()
        self.model.removals.latest_wall_ms = self.clock.now_ms() + self._latest_skew_ms
        invariants.check_ends(self, self._ends)
        if self.steps % 64 == 0:
            self.network.check_nobody_waits()
        if self.model.problems:
            raise self.model.problems[0]

    def _look_at_end(self) -> None:
        """A broker whose own controller cannot write ends, and somebody starts it again."""
        broker = self.station.broker
        if self.in_trouble and broker is not None and broker.membership is not None and broker.membership.ended.done:
            self.trace("broker", "ends by itself")
            self.station.crash()
            self._come_back_later()

    def _run_for(self, duration_ms: int) -> None:
        end_ms = self.clock.now_ms() + duration_ms
        while self._step(end_ms):
            pass

    # -- peace

    def _make_peace(self) -> None:
        self.trace("peace", "begins")
        self.station.disarm()
        self.station.lag_ms = self.station.turn_ms = lambda: 0
        self.network.weather = Weather()
        self._put_clock_right()
        if not self.plan.drains:
            self._everybody_leaves()
        if self.station.broker is None:
            self._come_back_in_peace()
        elif self._restarts_in_peace:
            self._start_over(stop=self.station.crash)
        self._run_for(self.plan.txn_timeout_ms + 16_000)
        self._everybody_leaves()
        self._run_for(self.plan.txn_timeout_ms + 3_000)
        self.network.check_nobody_waits()
        if self.plan.late_producers and not self.plan.verification:
            abort_hanging(self)
        settle_all(self)
        self._run_for(2_000)

    def _everybody_leaves(self) -> None:
        for actor in self.actors:
            actor.kill()

    def _come_back_in_peace(self) -> None:
        self.station.start()

    def _restart(self, how: str) -> None:
        if how == "clean":
            self._start_over(stop=self.station.stop)
        elif how == "crash":
            self._start_over(stop=self.station.crash)

    def _start_over(self, *, stop: Any) -> None:
        stop()
        self.station.start()
        self.clock.advance_ms(2_000)

    def played_summary(self) -> str:
        model = self.model
        return (
            f"{self.steps} events, {self.network.calls} requests, {self.network.ghosts} ghosts, "
            f"{len(model.transactions)} transactions, {len(model.records)} records, {self.station.starts} starts"
        )


@contextmanager
def short_epochs(wanted: bool) -> Iterator[None]:
    """Lets producer ids run out of epochs after a few, everywhere in the broker.

    A module that is imported meanwhile takes the short ones for its own, so all are looked at in the end.
    """
    usual = (ids.EPOCH_MAX, ids.EPOCH_EXHAUSTED)
    if wanted:
        _set_epochs(SHORT_EPOCHS + 1, SHORT_EPOCHS)
    try:
        yield
    finally:
        if wanted:
            _set_epochs(*usual)


def _set_epochs(epoch_max: int, epoch_exhausted: int) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("oncelog."):
            for constant, value in (("EPOCH_MAX", epoch_max), ("EPOCH_EXHAUSTED", epoch_exhausted)):
                if hasattr(module, constant):
                    setattr(module, constant, value)
