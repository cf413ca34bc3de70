"""Orders whose every number is known beforehand: order `i` is the same on every run.

An order is JSON like `{"id": 17, "customer": 3, "cents": 1250, "at": 1700000017}`. Every 97th is broken JSON, as they
come in real life. Customers live in a compacted topic: key = customer, value = region.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

CUSTOMERS = 100
REGIONS = ("north", "east", "south", "west")
BROKEN_EVERY = 97
FIRST_SECOND = 1_700_000_000
ORDERS_PER_SECOND = 100
WINDOW_S = 60
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    customer: int
    cents: int
    at: int

    @property
    def region(self) -> str:
        return region_of(self.customer)

    @property
    def window(self) -> int:
        return self.at - self.at % WINDOW_S


def region_of(customer: int) -> str:
    return REGIONS[customer * 7 % len(REGIONS)]


def order(number: int) -> Order:
    mixed = (number * 2_654_435_761) & 0xFFFFFFFF
    return Order(number, mixed % CUSTOMERS, 100 + (mixed >> 8) % 9_900, FIRST_SECOND + number // ORDERS_PER_SECOND)


def is_broken(number: int) -> bool:
    return number % BROKEN_EVERY == BROKEN_EVERY - 1


def as_record(number: int) -> tuple[bytes, bytes]:
    """Key and value as they stand in the topic."""
    one = order(number)
    text = f'{{"id": {one.id}, "customer": {one.customer}, "cents": {one.cents}, "at": {one.at}}}'
    return str(one.customer).encode(), (text[:-9] if is_broken(number) else text).encode()


def order_columns(count: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Keys and values of all orders, a chunk at a time."""
    for first in range(0, count, CHUNK):
        records = [as_record(number) for number in range(first, min(first + CHUNK, count))]
        yield pa.array([key for key, _ in records], pa.binary()), pa.array([value for _, value in records], pa.binary())


def customer_columns() -> tuple[pa.Array, pa.Array]:
    keys = [str(customer).encode() for customer in range(CUSTOMERS)]
    values = [region_of(customer).encode() for customer in range(CUSTOMERS)]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


@dataclass(slots=True)
class Truth:
    """What must come out."""

    enriched: Counter[bytes] = field(default_factory=Counter)
    """Good orders as `id/region`."""
    broken: Counter[bytes] = field(default_factory=Counter)
    revenue: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """(window, region) to (orders, cents)."""


def truth(count: int) -> Truth:
    known = Truth()
    totals: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for number in range(count):
        if is_broken(number):
            known.broken[as_record(number)[1]] += 1
            continue
        one = order(number)
        known.enriched[b"%d/%s" % (number, one.region.encode())] += 1
        total = totals[(one.window, one.region)]
        total[0] += 1
        total[1] += one.cents
    known.revenue = {where: (orders, cents) for where, (orders, cents) in totals.items()}
    return known
