"""Appends of an active controller that are not in ZooKeeper yet: those that wait, and those that were sent.

What was sent has no answer yet, in office or after it. It is found in the log, or fails when it cannot get there any
more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from oncelog.cluster.committed_log import BATCH_BYTES_MAX
from oncelog.cluster.metadata_log import no_longer_active, outcome_unknown
from oncelog.cluster.zookeeper import Create
from oncelog.cluster.zookeeper_nodes import log_node, log_path
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.batch import read_header


class Entry(NamedTuple):
    """A batch that is to be a log node. The last one of an append completes it."""

    batch: bytes
    data: bytes
    first_offset: int
    promise: Promise[int | KafkaError]
    is_last: bool

    def confirm(self) -> None:
        if self.is_last:
            self.promise.resolve(self.first_offset)

    def fail(self, error: KafkaError) -> None:
        if not self.promise.done:
            self.promise.resolve(error)


class PendingAppends:
    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._sequence = 0
        self._waiting: deque[Entry] = deque()
        self._sent: deque[Entry] = deque()
        self._sent_number = 0
        """The log node of the first of them."""

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def sent_count(self) -> int:
        return len(self._sent)

    def next_offset(self, end_offset: int) -> int:
        """Where the next append begins, if the log ends at `end_offset`."""
        before = self._waiting or self._sent
        return read_header(before[-1].batch).next_offset if before else end_offset

    def add(self, batches: Sequence[bytes], epoch: int) -> Promise[int | KafkaError]:
        """One append. Promises its first offset when all of it is written."""
        promise: Promise[int | KafkaError] = Promise()
        first_offset = read_header(batches[0]).base_offset
        for number, batch in enumerate(batches, 1):
            self._sequence += 1
            data = log_node(batch, epoch, self._node_id, self._sequence)
            self._waiting.append(Entry(batch, data, first_offset, promise, number == len(batches)))
        return promise

    def send(self, number: int) -> list[Create]:
        """As much of what waits as fits into one multi, as log nodes from `number` on."""
        operations: list[Create] = []
        size = 0
        self._sent_number = number
        while self._waiting and (not self._sent or size + len(self._waiting[0].data) <= BATCH_BYTES_MAX):
            entry = self._waiting.popleft()
            operations.append(Create(log_path(number + len(self._sent)), entry.data))
            self._sent.append(entry)
            size += len(entry.data)
        return operations

    def has_sent(self, number: int, data: bytes) -> bool:
        """Whether the log node `number`, with this content, is the first that was sent and has no answer."""
        return bool(self._sent) and self._sent_number == number and self._sent[0].data == data

    def pop_written(self) -> Entry:
        """The first that was sent: it is written."""
        self._sent_number += 1
        return self._sent.popleft()

    def fail_waiting(self, reason: str) -> None:
        failed, self._waiting = self._waiting, deque()
        for entry in failed:
            entry.fail(no_longer_active(reason))

    def fail_sent(self, reason: str) -> None:
        """What was sent is known not to be written."""
        self._fail_sent(no_longer_active(reason))

    def give_up_sent(self, reason: str) -> None:
        """Nobody will know whether what was sent is written."""
        self._fail_sent(outcome_unknown(reason))

    def _fail_sent(self, error: KafkaError) -> None:
        failed, self._sent = self._sent, deque()
        for entry in failed:
            entry.fail(error)
