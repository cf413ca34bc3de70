"""How `oncelog produce` sends its lines, in transactions or not, and reports what was written.

A writer that fails reports as written only what a broker has acknowledged. If an answer did not come, it says that the
outcome is not known, and names a command that shows it.
"""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Final

from oncelog.cli import progress
from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.output import count_of
from oncelog.cli.record_input import Block, LineFormat
from oncelog.client.errors import KafkaError, ProducerFenced, TimedOut
from oncelog.client.producer import Producer
from oncelog.client.transaction_state import State
from oncelog.core.display import are
from oncelog.core.errors import RETRIABLE, ErrorCode

COLUMNS_BYTES_MIN: Final = 64 * 1024
"""Blocks from this size on go through Arrow; below, its import would cost more than it gains."""
COLUMNS_BYTES_LATER: Final = 4 * 1024
"""Once Arrow is imported, it pays off for smaller blocks."""
UNCHECKED_MAX: Final = 10_000
"""Deliveries that are waited for at most, so that a failure is noticed while the input still runs."""
_UNDECIDED: Final = frozenset({*RETRIABLE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""A delivery that ended with one of these may be in the log: its answer did not come, or was no decision."""


class RecordWriter(ABC):
    """Sends the lines of blocks."""

    def __init__(
        self, producer: Producer, topic: str, line_format: LineFormat, partition: int | None, access: ClusterAccess
    ) -> None:
        self._producer = producer
        self.topic = topic
        self._format = line_format
        self._partition = partition
        self._access = access
        self._columns_work = line_format.has_columns and importlib.util.find_spec("pyarrow") is not None
        self._columns_bytes_min = COLUMNS_BYTES_MIN
        self._unchecked: deque[Any] = deque()
        self.records = 0
        """Those that were read: a record counts before it is sent, which may be interrupted."""
        self._acknowledged = 0
        """Of these, those whose delivery was seen to be acknowledged."""
        self._is_between = False
        """In the middle of a step: an interruption now leaves open which records are queued."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Everything is acknowledged, and committed, when this returns."""

    @abstractmethod
    def give_up(self) -> str:
        """Abort what is open, and report what was written."""

    @abstractmethod
    def left_undone(self) -> str:
        """What to say if giving up was interrupted as well."""

    def write(self, block: Block) -> None:
        try:
            if self._columns_work and not self._format.headers and len(block.data) >= self._columns_bytes_min:
                self._columns_bytes_min = COLUMNS_BYTES_LATER
                self._write_columns(block)
            else:
                self._write_lines(block)
        except Exception:
            # What is refused is not queued, and what was queued before has a future.
            self._is_between = False
            raise
        self._check_deliveries(UNCHECKED_MAX)

    def _write_lines(self, block: Block) -> None:
        lines = block.data.split(b"\n")
        lines.pop()
        send = self._producer.send
        for number, line in enumerate(lines, start=block.first_line):
            if self._format.is_json and not line.strip():
                continue
            record = self._format.parse(line, number, block.source)
            self.records += 1
            self._is_between = True
            future = send(
                self.topic,
                record.value,
                record.key,
                partition=record.partition if self._partition is None else self._partition,
                headers=record.headers or None,
                timestamp_ms=record.timestamp_ms,
            )
            self._unchecked.append(future)
            self._is_between = False
            self._sent()

    def _write_columns(self, block: Block) -> None:
        from oncelog.cli.record_columns import rows_of

        keys, values = rows_of(block, self._format)
        start = 0
        while start < len(values):
            count = min(len(values) - start, self._room())
            self.records += count
            self._is_between = True
            self._producer.send_columns(
                self.topic,
                values.slice(start, count),
                key=None if keys is None else keys.slice(start, count),
                partition=self._partition,
                on_delivery=self._unchecked.append,
            )
            self._is_between = False
            self._sent()
            start += count

    def _room(self) -> int:
        """How many records may be sent together."""
        return sys.maxsize

    @abstractmethod
    def _sent(self) -> None:
        """What was read so far is queued."""

    def _check_deliveries(self, leave: int) -> None:
        """Raises what went wrong with the oldest deliveries, and waits for all but `leave` of them."""
        while self._unchecked and (len(self._unchecked) > leave or self._unchecked[0].done()):
            delivery = self._unchecked[0].result()
            self._is_between = True
            self._unchecked.popleft()
            self._delivered(delivery)
            self._is_between = False

    def _delivered(self, delivery: Any) -> None:
        # The delivery of columns is that of a batch, the others are of one record.
        self._acknowledged += getattr(delivery, "records_count", 1)


class PlainWriter(RecordWriter):
    """Without transactions: every record counts by itself."""

    def begin(self) -> None: ...

    def _sent(self) -> None: ...

    def finish(self) -> None:
        self._producer.flush()
        self._check_deliveries(0)

    def give_up(self) -> str:
        # Delivers what waits, within the time that the command has; then every delivery has an outcome.
        self._producer.close(self._access.timeout_ms)
        undecided = self._is_between
        for future in self._unchecked:
            error = future.exception()
            if error is None:
                self._delivered(future.result())
            else:
                is_decided = isinstance(error, KafkaError) and not error.in_doubt and error.code not in _UNDECIDED
                undecided = undecided or not is_decided
        self._unchecked.clear()
        return self._outcome(undecided)

    def left_undone(self) -> str:
        return self._outcome(is_undecided=True)

    def _outcome(self, is_undecided: bool) -> str:
        rest = self.records - self._acknowledged
        if not self._acknowledged and not (rest and is_undecided):
            return "Nothing was written."
        if not rest:
            return f"What was read before it, {count_of(self.records, 'record')}, is written."
        known = f"{self._acknowledged} of {count_of(self.records, 'record')} read {are(self._acknowledged)}"
        if not is_undecided:
            return f"{known} written, the other {rest} {are(rest)} not."
        look = self._access.command("consume", self.topic, "--from=-10")
        unknown = f"it is not known whether the other {rest} {are(rest)} written"
        return f"{known} acknowledged; {unknown}: '{look}' shows the last records."


class TransactionalWriter(RecordWriter):
    """In transactions of `size` records, or in one."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        line_format: LineFormat,
        partition: int | None,
        access: ClusterAccess,
        size: int | None,
    ) -> None:
        super().__init__(producer, topic, line_format, partition, access)
        self._id = producer.settings.transactional_id or ""
        self._size = size
        self._commit_sent = False
        """A commit of the present transaction is on its way, or was."""
        self._commit_repeated = False
        self._committed = 0
        """Records of transactions that are committed."""

    def begin(self) -> None:
        if self._producer.state is State.UNINITIALISED:
            self._producer.init_transactions()
        self._producer.begin_transaction()

    def finish(self) -> None:
        self._commit()

    def _room(self) -> int:
        return sys.maxsize if self._size is None else self._size - self._uncommitted

    def _sent(self) -> None:
        if self._size is not None and self._uncommitted >= self._size:
            self._commit()
            self.begin()

    @property
    def _uncommitted(self) -> int:
        return self.records - self._committed

    def _commit(self) -> None:
        self._commit_sent = True
        try:
            self._producer.commit_transaction()
        except TimedOut as error:
            # Only another commit finds out whether the first one was carried out.
            progress.say(f"The commit was not answered ({error.message}); asking again")
            self._commit_repeated = True
            self._producer.commit_transaction()
        self._unchecked.clear()
        self._committed = self.records
        self._commit_sent = self._commit_repeated = False

    def give_up(self) -> str:
        state = self._producer.state
        if not self._commit_sent:
            return self._abort()
        if state is State.READY or (state is State.COMMITTING and not self._commit_repeated):
            return self._find_out()
        if state is State.ABORTABLE_ERROR:
            return self._abort()
        self._producer.close(0)
        return self.left_undone()

    def _find_out(self) -> str:
        """The commit was interrupted: a second commit shows whether it was carried out."""
        try:
            if self._producer.state is State.COMMITTING:
                self._producer.commit_transaction()
        except KafkaError:
            self._producer.close(0)
            return self.left_undone()
        return _sentence(f"The transaction of {self._size_now} is committed", self._earlier)

    def _abort(self) -> str:
        is_confirmed = True
        try:
            if self._producer.state is not State.UNINITIALISED and self._producer.state is not State.READY:
                self._producer.abort_transaction()
        except ProducerFenced:
            # By whoever took over the id, or by its coordinator after the time-out: both have aborted it.
            self._producer.close(0)
        except KafkaError:
            is_confirmed = False
            self._producer.close(0)
        if not self._uncommitted:
            return _sentence(self._earlier or "Nothing was written")
        if not is_confirmed:
            return self.left_undone()
        return _sentence(f"The transaction of {self._size_now} is aborted", self._earlier or "nothing was written")

    def left_undone(self) -> str:
        command = self._access.command("txn", "history", self._id)
        if self._commit_sent:
            known = f"Whether the transaction of {self._size_now} is committed is not known"
        else:
            known = f"The transaction of {self._size_now} is not committed, and that it is aborted is not confirmed"
        rest = "if it is open, its coordinator aborts it when its time-out has passed"
        return _sentence(f"{known}: '{command}' shows how it ended", rest, self._earlier)

    @property
    def _size_now(self) -> str:
        return count_of(self._uncommitted, "record")

    @property
    def _earlier(self) -> str:
        """What was written before the present transaction."""
        was = "was" if self._committed == 1 else "were"
        return f"{count_of(self._committed, 'record')} {was} committed before it" if self._committed else ""


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts)) + "."
