"""Produce requests to leaders: what is sent to one broker in one turn of the event loop shares one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from oncelog.client.connection import Connection
from oncelog.client.errors import ConnectionLost, KafkaError, UnsupportedByBroker
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from oncelog.protocol.schema import Message

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""More than this is spread over several requests, so that one broker-side limit is never met by coalescing."""
PRODUCE_VERSION_BEFORE_TV2: Final = 11
"""From version 12 on the broker adds partitions to the transaction by itself."""


Answered = Callable[[PartitionProduceResponse | KafkaError], None]


class _Entry(NamedTuple):
    partition: TopicPartition
    data: bytes
    timeout_ms: float
    answered: Answered


class ProduceChannel:
    """Sends stamped batches; each `send` is answered on its own, or fails with ConnectionLost."""

    def __init__(
        self,
        *,
        acks: int = -1,
        request_timeout_ms: int,
        transactional_id: str | None = None,
        version_max: int | None = None,
    ) -> None:
        self.acks = acks
        self.version_max = version_max
        self.transactional_id = transactional_id
        self._request_timeout_ms = request_timeout_ms
        self._queues: dict[Connection, list[_Entry]] = {}
        self._loop = asyncio.get_running_loop()

    def send(
        self, connection: Connection, partition: TopicPartition, data: bytes, timeout_ms: float, answered: Answered
    ) -> None:
        """Queue a batch for the end of this turn; calls are written out in their order."""
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = []
            self._loop.call_soon(self._flush, connection)
        queue.append(_Entry(partition, data, timeout_ms, answered))

    def _flush(self, connection: Connection) -> None:
        entries = self._queues.pop(connection, [])
        request: list[_Entry] = []
        taken: set[TopicPartition] = set()
        size = 0
        for entry in entries:
            # A request holds at most one batch of a partition: its answer could not tell two of them apart.
            if request and (entry.partition in taken or size + len(entry.data) > REQUEST_BYTES_MAX):
                self._write(connection, request)
                request, size = [], 0
                taken.clear()
            request.append(entry)
            taken.add(entry.partition)
            size += len(entry.data)
        if request:
            self._write(connection, request)

    def _write(self, connection: Connection, entries: list[_Entry]) -> None:
        message = self._request(entries)
        try:
            timeout_ms = min(self._request_timeout_ms, max(1.0, *(entry.timeout_ms for entry in entries)))
            if self.acks == 0:
                held_back = connection.post(message, version_max=self.version_max, timeout_ms=timeout_ms)
                if held_back is None:
                    _answer(entries, None)
                else:
                    held_back.add_done_callback(lambda done: _answer(entries, done.exception()))
                return
            connection.ask(
                message,
                lambda answer: _answer(entries, answer),
                version_max=self.version_max,
                timeout_ms=timeout_ms,
            )
        except (ConnectionLost, UnsupportedByBroker) as error:
            _answer(entries, error)

    def _request(self, entries: list[_Entry]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for entry in entries:
            data = PartitionProduceData(index=entry.partition.partition, records=entry.data)
            topics.setdefault(entry.partition.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self.acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )


def _answer(entries: list[_Entry], outcome: Message | BaseException | None) -> None:
    """Tell each of its answer. None is for what was written and is not answered."""
    answers: dict[TopicPartition, PartitionProduceResponse] = {}
    if isinstance(outcome, ProduceResponse):
        for topic in outcome.responses:
            for partition in topic.partition_responses:
                answers[TopicPartition(topic.name, partition.index)] = partition
    for entry in entries:
        if outcome is None:
            entry.answered(PartitionProduceResponse(index=entry.partition.partition, base_offset=-1))
        elif isinstance(outcome, KafkaError):
            entry.answered(outcome)
        else:
            missing = ConnectionLost(f"the answer leaves out {entry.partition}")
            entry.answered(answers.get(entry.partition, missing))
