"""What a history is made of, drawn from its seed.

Every trouble is left out of many histories: two that never meet otherwise should meet alone sometimes, and a broker
that is always down does not get far enough to be wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Final

from tests.simulation.network import Weather
from tests.simulation.removals import TOMBSTONES_STAY_MS

SHORT_EPOCHS: Final = 2
"""Epochs of a producer id in histories that are about running out of them, instead of 32766."""


THEMES: Final = {
    "calm": 0.03,
    "rotation": 0.07,
    "stragglers": 0.08,
    "cleaning": 0.06,
    "table": 0.08,
    "removal": 0.06,
    "forgetting": 0.04,
    "repetitions": 0.04,
    "dawdling": 0.02,
    "clock": 0.03,
    "steps": 0.06,
    "repairs": 0.04,
    "anything": 0.39,
}
"""What histories are about, and the share of those that are."""


def accumulate_shares() -> Iterator[tuple[str, float]]:
    """The last one gets what is left."""
    limits = list(accumulate(THEMES.values()))
    return zip(THEMES, [*limits[:-1], 1.0], strict=True)


@dataclass
class Plan:
    transaction_version: int = 2
    partitions: int = 3
    segment_bytes: int | None = None
    rounds: int = 3
    """Transactions of each transactional id."""
    ids: int = 1
    contenders: int = 1
    """Instances that fight for the same id."""
    new_dialect: int = 500
    """Permille of instances that speak TV2, where the broker does."""
    with_group: bool = False
    idempotent: int = 0
    workers: int = 0
    fencing: bool = False
    late_producers: int = 0
    marker_ghosts: bool = False
    verification: bool = True
    pauses: int = 0
    impatience: int = 0
    """Permille of lost produce requests after which a transactional producer aborts instead of repeating."""
    txn_timeout_ms: int = 4_000
    client_kills: int = 0
    crashes: int = 0
    crash_points: bool = True
    clean_stops: int = 0
    power_cuts: bool = False
    """Crashes lose what was not fsynced. Only with `fsyncs`, because acknowledgements mean nothing otherwise."""
    fsyncs: str = ""
    """"append": after every append; "acks": before every acknowledgement."""
    lag_permille: int = 0
    lag_ms_max: int = 200
    disk_trouble: int = 0
    """Permille of appends that find the disk full."""
    half_writes: int = 0
    """Permille of writes that find the disk full when a part of them is done. Only with `disk_trouble`."""
    compaction: bool = False
    """The logs of the coordinators are cleaned all the time."""
    doomed_topic: bool = False
    """Producers also write to a topic that is deleted."""
    two_phase: bool = False
    deletes: bool = False
    """Somebody deletes the beginnings of partitions."""
    retention_ms: int | None = None
    table: bool = False
    """Producers also write to a compacted topic."""
    tombstones_ms: int = TOMBSTONES_STAY_MS
    producer_expiration_ms: int | None = None
    clock_jumps: int = 0
    dawdlers: int = 0
    """Producers that keep a transaction busy for longer than it may be open."""
    slow_worker: bool = False
    small_steps: bool = False
    """Work that takes turns takes as many as it can, and others come in between."""
    short_epochs: bool = False
    id_expiration: bool = False
    parking: bool = True
    drains: bool = False
    """Whether clients finish what they are doing when trouble ends, or are all killed."""
    last_start: str = "crash"
    is_calm: bool = False
    restart_in_peace: bool = True
    weather: Weather = field(default_factory=Weather)

    @classmethod
    def draw(cls, seed: int, theme: str | None = None) -> Plan:
        """By default of any theme, each as often as `THEMES` says."""
        rng = random.Random(f"plan {seed}")
        chance = rng.random()
        drawn = next(name for name, limit in accumulate_shares() if chance < limit)
        draw: Callable[[random.Random], Plan] = getattr(cls, f"_draw_{theme or drawn}")
        return draw(rng)

    @classmethod
    def _draw_anything(cls, rng: random.Random) -> Plan:
        def often() -> bool:
            return rng.random() < 0.6

        def seldom() -> bool:
            return rng.random() < 0.2

        plan = cls(
            transaction_version=rng.choice((0, 1, 2, 2, 2, 2)),
            partitions=rng.choice((1, 2, 3)),
            segment_bytes=rng.choice((None, 300, 700)),
            rounds=rng.randrange(2, 6),
            ids=rng.choice((1, 1, 2)),
            contenders=rng.choice((1, 1, 2)),
            new_dialect=rng.choice((0, 500, 1000, 1000)),
            with_group=often(),
            idempotent=rng.choice((0, 0, 1, 2)),
            pauses=rng.choice((0, 0, 80, 250)),
            impatience=rng.choice((0, 0, 300)),
            txn_timeout_ms=rng.choice((1_000, 4_000)),
            client_kills=rng.choice((0, 0, 1, 3)),
            crashes=rng.choice((0, 1, 1, 2, 3)),
            crash_points=often(),
            clean_stops=rng.choice((0, 0, 0, 1)),
            lag_permille=rng.choice((0, 0, 100, 400, 1000)),
            lag_ms_max=rng.choice((20, 200, 900)),
            slow_worker=seldom(),
            short_epochs=seldom(),
            id_expiration=rng.random() < 0.05,
            parking=not seldom(),
            drains=often(),
            last_start=rng.choice(("crash", "crash", "clean", "none")),
            restart_in_peace=rng.random() < 0.3,
        )
        plan.fencing = seldom()
        plan.late_producers = rng.choice((0, 0, 0, 1))
        plan.verification = not (plan.late_producers and seldom())
        plan.compaction = rng.random() < 0.15
        if rng.random() < 0.08:
            # Outputs that go with their topic cannot be counted against inputs.
            plan.doomed_topic, plan.with_group = True, False
        plan.marker_ghosts = plan.transaction_version == 2 and rng.random() < 0.15
        if rng.random() < 0.2:
            plan.workers, plan.ids, plan.contenders = rng.choice((2, 3)), 0, 0
            plan.fencing, plan.with_group = False, False
            plan.txn_timeout_ms = rng.choice((4_000, 25_000))
        elif rng.random() < 0.08:
            plan.two_phase, plan.transaction_version, plan.contenders = True, 2, 1
            plan.fencing, plan.with_group, plan.id_expiration = False, False, False
        if rng.random() < 0.15:
            plan.fsyncs = rng.choice(("append", "acks", "acks"))
            plan.slow_worker = often()
            plan.crashes += 1
            plan.power_cuts = True
        if seldom():
            plan.disk_trouble = rng.choice((10, 50))
            # While a marker cannot be written its transaction is open, and before TV2 a late batch may still join it.
            plan.late_producers, plan.verification = 0, True
        if rng.random() < 0.1:
            plan.deletes = True
        if rng.random() < 0.08:
            plan.retention_ms = rng.choice((3_000, 15_000, 200_000))
        if rng.random() < 0.12:
            plan.table, plan.tombstones_ms = True, rng.choice((1_000, TOMBSTONES_STAY_MS))
        if rng.random() < 0.12:
            plan.clock_jumps = rng.choice((1, 2, 5))
        if rng.random() < 0.1:
            plan.dawdlers, plan.partitions = 1, rng.choice((2, 3))
        if not plan.verification:
            # A marker that is written again after a restart would end what a late batch has opened since.
            plan.crashes = plan.clean_stops = plan.lag_permille = 0
        plan.weather = cls._draw_weather(rng)
        return plan

    @classmethod
    def _draw_calm(cls, rng: random.Random) -> Plan:
        """Nothing goes wrong: then everything must succeed."""
        return cls(
            transaction_version=rng.choice((0, 1, 2, 2)),
            rounds=rng.randrange(2, 6),
            ids=2,
            with_group=rng.random() < 0.5,
            idempotent=1,
            short_epochs=rng.random() < 0.5,
            lag_permille=rng.choice((0, 500)),
            parking=rng.random() < 0.5,
            txn_timeout_ms=60_000,
            drains=True,
            is_calm=True,
        )

    @classmethod
    def _draw_rotation(cls, rng: random.Random) -> Plan:
        """Producer ids run out of epochs all the time, and the broker dies while they are exchanged."""
        return cls(
            short_epochs=True,
            new_dialect=1000,
            rounds=6,
            ids=rng.choice((1, 2)),
            crashes=rng.choice((2, 3)),
            lag_permille=rng.choice((0, 0, 300)),
            segment_bytes=rng.choice((None, 300)),
            restart_in_peace=False,
            weather=Weather(break_after=rng.choice((0, 40))),
        )

    @classmethod
    def _draw_stragglers(cls, rng: random.Random) -> Plan:
        """Old clients give up on batches, which arrive while their transaction is being ended on a bad disk."""
        return cls(
            transaction_version=rng.choice((0, 1, 2)),
            new_dialect=0,
            rounds=6,
            ids=2,
            impatience=1000,
            disk_trouble=rng.choice((150, 250)),
            restart_in_peace=False,
            weather=Weather(break_before=150),
        )

    @classmethod
    def _draw_cleaning(cls, rng: random.Random) -> Plan:
        """Transactions are open for long in logs that are cleaned meanwhile, and then read again."""
        return cls(
            transaction_version=rng.choice((1, 2)),
            compaction=True,
            with_group=True,
            ids=3,
            rounds=6,
            pauses=400,
            txn_timeout_ms=4_000,
            crashes=rng.choice((1, 2)),
            restart_in_peace=True,
            client_kills=rng.choice((0, 2)),
        )

    @classmethod
    def _draw_table(cls, rng: random.Random) -> Plan:
        """Transactions are open for long in a compacted topic, which is cleaned meanwhile and read again."""
        return cls(
            table=True,
            tombstones_ms=rng.choice((1_000, TOMBSTONES_STAY_MS)),
            segment_bytes=300,
            partitions=1,
            ids=3,
            rounds=6,
            idempotent=1,
            pauses=400,
            client_kills=rng.choice((0, 2)),
            crashes=rng.choice((1, 2)),
            clean_stops=rng.choice((0, 1)),
            power_cuts=False,
            weather=Weather(break_after=rng.choice((0, 40))),
            deletes=rng.random() < 0.3,
        )

    @classmethod
    def _draw_removal(cls, rng: random.Random) -> Plan:
        """Records are deleted and grow old while transactions are open over them, and the broker dies."""
        return cls(
            deletes=True,
            retention_ms=rng.choice((None, 3_000, 15_000, 200_000)),
            segment_bytes=rng.choice((None, 300, 700)),
            ids=2,
            rounds=5,
            idempotent=1,
            with_group=rng.random() < 0.5,
            pauses=300,
            crashes=rng.choice((0, 1, 2)),
            clean_stops=rng.choice((0, 1)),
            clock_jumps=rng.choice((0, 0, 2)),
            drains=rng.random() < 0.6,
            weather=cls._draw_weather(rng),
        )

    @classmethod
    def _draw_forgetting(cls, rng: random.Random) -> Plan:
        """Producers are forgotten after a while, but not those with a transaction open, which here lasts longer.

        Not while a request may still arrive: its repetition would be written twice, as everybody is told.
        """
        return cls(
            producer_expiration_ms=10_000,
            txn_timeout_ms=25_000,
            pauses=600,
            ids=2,
            rounds=3,
            idempotent=1,
            crashes=rng.choice((0, 1)),
            clean_stops=rng.choice((0, 1)),
            segment_bytes=rng.choice((None, 300)),
            restart_in_peace=False,
            drains=rng.random() < 0.6,
        )

    @classmethod
    def _draw_repetitions(cls, rng: random.Random) -> Plan:
        """Batches are repeated while the first of them waits for a slow disk, and then the power goes."""
        return cls(
            fsyncs="acks",
            power_cuts=True,
            slow_worker=True,
            crashes=4,
            crash_points=rng.random() < 0.3,
            ids=1,
            rounds=6,
            idempotent=2,
            weather=Weather(break_after=rng.choice((100, 300))),
        )

    @classmethod
    def _draw_clock(cls, rng: random.Random) -> Plan:
        """The clock is set again and again, and nobody puts it right."""
        plan = cls(
            clock_jumps=5,
            ids=2,
            rounds=4,
            pauses=250,
            client_kills=3,
            restart_in_peace=False,
            segment_bytes=rng.choice((None, 300)),
            weather=Weather(break_after=rng.choice((0, 40))),
        )
        if rng.random() < 0.5:
            plan.workers, plan.ids, plan.contenders, plan.txn_timeout_ms = 3, 0, 0, rng.choice((4_000, 25_000))
        return plan

    @classmethod
    def _draw_dawdling(cls, rng: random.Random) -> Plan:
        """A transaction is kept busy beyond its time-out."""
        return cls(
            dawdlers=2,
            transaction_version=rng.choice((1, 2, 2)),
            partitions=rng.choice((2, 3)),
            ids=1,
            rounds=2,
            lag_permille=rng.choice((0, 300)),
            crashes=rng.choice((0, 0, 1)),
            drains=True,
        )

    @classmethod
    def _draw_steps(cls, rng: random.Random) -> Plan:
        """All that is done in steps meets what others do between them."""
        plan = cls._draw_work_on_logs(rng)
        plan.small_steps = True
        return plan

    @classmethod
    def _draw_repairs(cls, rng: random.Random) -> Plan:
        """What is written is left half done, so that logs are read again and coordinators begin anew meanwhile."""
        plan = cls._draw_work_on_logs(rng)
        plan.disk_trouble, plan.half_writes = 10, rng.choice((10, 40))
        plan.late_producers, plan.verification = 0, True
        return plan

    @classmethod
    def _draw_work_on_logs(cls, rng: random.Random) -> Plan:
        draw = rng.choice((cls._draw_anything, cls._draw_cleaning, cls._draw_table, cls._draw_removal))
        return draw(rng)

    @staticmethod
    def _draw_weather(rng: random.Random) -> Weather:
        if rng.random() < 0.25:
            return Weather()
        return Weather(
            break_before=rng.choice((0, 10, 60)),
            break_after=rng.choice((0, 10, 60)),
            haunt=rng.choice((0, 0, 50, 200)),
            slow=rng.choice((0, 20, 150)),
            ghost_ms_max=rng.choice((200, 2_000, 12_000)),
        )

    def __str__(self) -> str:
        default = Plan()
        return ", ".join(
            f"{entry.name}={getattr(self, entry.name)}"
            for entry in fields(self)
            if getattr(self, entry.name) != getattr(default, entry.name)
        )
