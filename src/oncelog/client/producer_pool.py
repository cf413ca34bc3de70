"""Transactional producers for programs with many threads.

A transactional producer has one transaction at a time, so threads that work side by side need one each, under different
transactional ids. The pool makes them from a prefix and a number, keeps them for the next use, and replaces one that is
finished. Numbers are used again from the lowest: after a restart the same ids come back, and each first use fences what
the last run left open under that id. Two processes must therefore not share a prefix.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from oncelog.client.deadline import Deadline
from oncelog.client.errors import ConfigurationError, IllegalState, KafkaError, TimedOut
from oncelog.client.producer import Producer, Serializer
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.transaction_state import State

SIZE_MAX: Final = 32


class ProducerPool:
    """Transactional producers for many threads, under the ids PREFIX-0, PREFIX-1 and so on.

        with pool.transaction() as producer:
            producer.send("orders", "paid")

    A producer is made when all others are in use, `size_max` at most.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        prefix: str,
        *,
        size_max: int = SIZE_MAX,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        if "transactional.id" in config:
            raise ConfigurationError("transactional.id is made by the pool from its prefix: leave it out")
        if not prefix:
            raise ConfigurationError("a pool needs a prefix for its transactional ids")
        self._config = dict(config)
        self._prefix = prefix
        self._serializers = (key_serializer, value_serializer)
        self._changed = threading.Condition()
        self._numbers = list(range(size_max))
        self._idle: list[tuple[int, Producer]] = []
        self._in_use: dict[int, Producer] = {}
        self._closed = False
        self._parse(0)

    def _parse(self, number: int) -> ProducerConfig:
        return ProducerConfig.parse({**self._config, "transactional.id": f"{self._prefix}-{number}"})

    @contextmanager
    def transaction(self, timeout_ms: float | None = None) -> Iterator[Producer]:
        """A producer in a transaction, for this thread alone. Commits at the end, aborts when the block raises.

        Waits for a free producer up to the timeout (default `max.block.ms`). Raises TimedOut.
        """
        number, producer = self._acquire(timeout_ms)
        try:
            with producer.transaction():
                yield producer
        finally:
            self._release(number, producer)

    def _acquire(self, timeout_ms: float | None) -> tuple[int, Producer]:
        deadline = Deadline(self._parse(0).max_block_ms if timeout_ms is None else timeout_ms)
        with self._changed:
            while True:
                if self._closed:
                    raise IllegalState("this pool is closed")
                if self._idle:
                    number, producer = heapq.heappop(self._idle)
                    self._in_use[number] = producer
                    return number, producer
                if self._numbers:
                    number = heapq.heappop(self._numbers)
                    break
                if not self._changed.wait(deadline.remaining_ms / 1000):
                    raise TimedOut(f"all {len(self._in_use)} producers of pool {self._prefix} stayed in use")
        return number, self._make(number)

    def _make(self, number: int) -> Producer:
        """Outside of the lock: it may take as long as the predecessor's transaction takes to be aborted."""
        key_serializer, value_serializer = self._serializers
        producer = Producer(self._parse(number), key_serializer=key_serializer, value_serializer=value_serializer)
        try:
            producer.init_transactions()
        except BaseException:
            self._discard(number, producer)
            raise
        with self._changed:
            self._in_use[number] = producer
        return producer

    def _release(self, number: int, producer: Producer) -> None:
        if producer.state is not State.READY or self._closed:
            # Fenced, or in doubt: a new producer under the same id starts by clearing up.
            self._discard(number, producer)
            return
        with self._changed:
            del self._in_use[number]
            heapq.heappush(self._idle, (number, producer))
            self._changed.notify()

    def _discard(self, number: int, producer: Producer) -> None:
        try:
            producer.close()
        except KafkaError:
            pass
        finally:
            with self._changed:
                self._in_use.pop(number, None)
                heapq.heappush(self._numbers, number)
                self._changed.notify()

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    @property
    def in_use_count(self) -> int:
        return len(self._in_use)

    def close(self) -> None:
        """Close idle producers now, those in use when they are given back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for _, producer in idle:
            producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
