"""What a history is made of, drawn from its seed.

Every trouble is left out of many histories: two that never meet otherwise should meet alone sometimes, and a broker that is
always down does not get far enough to be wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Final

from tests.simulation.network import Weather

SHORT_EPOCHS: Final = 4
"""Epochs of a producer id in histories that are about running out of them, instead of 32766."""


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
    txn_timeout_ms: int = 4_000
    client_kills: int = 0
    crashes: int = 0
    crash_points: bool = True
    clean_stops: int = 0
    power_cuts: bool = False
    lag_permille: int = 0
    lag_ms_max: int = 200
    disk_trouble: int = 0
    """Permille of appends that find the disk full."""
    slow_worker: bool = False
    short_epochs: bool = False
    id_expiration: bool = False
    parking: bool = True
    drains: bool = False
    """Whether clients finish what they are doing when trouble ends, or are all killed."""
    last_start: str = "crash"
    weather: Weather = field(default_factory=Weather)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        rng = random.Random(f"plan {seed}")

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
        )
        plan.fencing = seldom()
        plan.late_producers = rng.choice((0, 0, 0, 1))
        plan.verification = not (plan.late_producers and seldom())
        plan.marker_ghosts = plan.transaction_version == 2 and rng.random() < 0.15
        if rng.random() < 0.2:
            plan.workers, plan.ids, plan.contenders = rng.choice((2, 3)), 0, 0
            plan.fencing, plan.with_group = False, False
        if rng.random() < 0.1:
            plan.power_cuts = plan.crashes > 0
        if seldom():
            plan.disk_trouble = rng.choice((10, 50))
            # While a marker cannot be written its transaction is open, and before TV2 a late batch may still join it.
            plan.late_producers, plan.verification = 0, True
        plan.weather = cls._draw_weather(rng)
        return plan

    @staticmethod
    def _draw_weather(rng: random.Random) -> Weather:
        if rng.random() < 0.25:
            return Weather()
        return Weather(
            break_before=rng.choice((0, 10, 60)),
            break_after=rng.choice((0, 10, 60)),
            haunt=rng.choice((0, 0, 50, 200)),
            slow=rng.choice((0, 20, 150)),
        )

    def __str__(self) -> str:
        default = Plan()
        return ", ".join(
            f"{entry.name}={getattr(self, entry.name)}"
            for entry in fields(self)
            if getattr(self, entry.name) != getattr(default, entry.name)
        )
