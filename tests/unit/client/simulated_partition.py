"""One partition of one broker, as a stream of batches meets it: with a producer's sequences, and with accidents."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oncelog.client.config import ClientConfig
from oncelog.client.connections import Connections
from oncelog.client.deadline import Backoff
from oncelog.client.errors import ConnectionLost, KafkaError, TimedOut
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import decode_records, read_header
from oncelog.protocol.messages.produce import PartitionProduceResponse

CONFIG = ClientConfig(bootstrap_servers="nowhere:1", retry_backoff_ms=0, retry_backoff_max_ms=1)


@dataclass
class SimulatedLog:
    """What a partition leader keeps: the records, and per producer its epoch and last five batches."""

    values: list[bytes] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    recent: dict[int, deque[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, data: bytes) -> tuple[int, int]:
        """Error code and base offset."""
        header = read_header(data)
        producer = header.producer_id
        if producer >= 0:
            epoch = self.epochs.get(producer, -1)
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                self.epochs[producer] = header.producer_epoch
                self.recent[producer] = deque(maxlen=5)
            recent = self.recent[producer]
            for first, last, offset in recent:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, offset
            expected = recent[-1][1] + 1 if recent else 0
            if header.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            recent.append((header.base_sequence, header.last_sequence, len(self.values)))
        offset = len(self.values)
        self.values += [record.value or b"" for record in decode_records(data)]
        return ErrorCode.NONE, offset


class SimulatedConnection:
    def __init__(self) -> None:
        self.closed = False


class SimulatedCluster:
    """Finds the leader, sometimes only after a while, or not at all."""

    def __init__(self, draw: random.Random, *, reachable: bool = True) -> None:
        self.network = Connections(CONFIG)
        self.reachable = reachable
        self.forgotten = 0
        self._draw = draw
        self._connection = SimulatedConnection()

    def open_leader(self, partition: TopicPartition) -> Any:
        return None if self._connection.closed or not self.reachable else self._connection

    async def leader(self, partition: TopicPartition, deadline: Any, channel: str = "") -> Any:
        await asyncio.sleep(0)
        if not self.reachable:
            await asyncio.sleep(deadline.remaining_ms / 1000)
            raise TimedOut(f"leader of {partition}")
        if self._connection.closed:
            self._connection = SimulatedConnection()
        return self._connection

    @property
    def routes(self) -> SimulatedCluster:
        return self

    def forget_leader(self, *partitions: TopicPartition) -> None:
        self.forgotten += len(partitions)

    def backoff(self) -> Backoff:
        return Backoff(CONFIG.retry_backoff_ms, CONFIG.retry_backoff_max_ms, self._draw)


class SimulatedChannel:
    """Carries batches to the log in order, as one connection does, and has the accidents it is told to have.

    `accidents` are drawn for each batch: "ok", "lost request", "lost answer", or an ErrorCode with which the leader
    refuses the batch without looking at it.
    """

    def __init__(self, log: SimulatedLog, draw: random.Random, accidents: list[Any]) -> None:
        self.transactional_id: str | None = None
        self.log = log
        self.sent = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self._draw = draw
        self._accidents = accidents
        self._tail: asyncio.Future[None] | None = None

    def send(
        self,
        connection: SimulatedConnection,
        partition: TopicPartition,
        data: bytes,
        timeout_ms: float,
        answered: Callable[[PartitionProduceResponse | KafkaError], None],
    ) -> None:
        self.sent += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        previous, self._tail = self._tail, asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._carry(connection, data, previous, self._tail))

        def arrived(done: asyncio.Task[PartitionProduceResponse]) -> None:
            self.in_flight -= 1
            error = done.exception()
            answered(error if isinstance(error, KafkaError) else done.result())

        task.add_done_callback(arrived)

    async def _carry(
        self, connection: SimulatedConnection, data: bytes, previous: Any, mine: asyncio.Future[None]
    ) -> PartitionProduceResponse:
        try:
            if previous is not None:
                await previous
            for _ in range(self._draw.randrange(3)):
                await asyncio.sleep(0)
            if connection.closed:
                # What was written to a connection before it broke may still arrive.
                if self._draw.random() < 0.5:
                    self.log.append(data)
                raise ConnectionLost("broken before")
            return self._answer(connection, data, self._draw.choice(self._accidents))
        finally:
            mine.set_result(None)

    def _answer(self, connection: SimulatedConnection, data: bytes, accident: Any) -> PartitionProduceResponse:
        if isinstance(accident, ErrorCode):
            return PartitionProduceResponse(error_code=accident, base_offset=-1)
        if accident == "lost request":
            connection.closed = True
            raise ConnectionLost(accident)
        code, offset = self.log.append(data)
        if accident == "lost answer":
            connection.closed = True
            raise ConnectionLost(accident)
        return PartitionProduceResponse(error_code=code, base_offset=offset)


def failure(code: ErrorCode) -> KafkaError:
    return KafkaError(code, "simulated")
