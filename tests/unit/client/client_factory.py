"""Clients that a test makes as it needs them, and what it reads with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from oncelog.client import Consumer, ConsumerRecord, Producer

C = TypeVar("C", Consumer, Producer)


@contextmanager
def client_factory(kind: Callable[[dict[str, Any]], C], settings: Mapping[str, Any]) -> Iterator[Callable[..., C]]:
    """Makes clients with these settings and those of each call, `linger_ms=0` for linger.ms, and closes them."""
    made: list[C] = []

    def make(**changes: Any) -> C:
        names = {name.replace("_", "."): value for name, value in changes.items()}
        client = kind({**settings, **names})
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def drain(client: Consumer, count: int, timeout_s: float = 60) -> list[ConsumerRecord]:
    """So many records, or those that come in time."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline:
        records += client.poll(100)
    return records


def numbers(records: list[ConsumerRecord]) -> list[int]:
    return sorted(int(record.value) for record in records)
