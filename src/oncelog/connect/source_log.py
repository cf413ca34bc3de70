"""The log's side of a source: its records and its position in one transaction.

The position is a committed offset: of the group `connect-NAME`, for partition 0 of the topic `oncelog-connect`. Every
tool that shows groups shows it. One producer with the transactional id `connect-NAME` writes both; a newer instance
fences it.

A broker that aborts a transaction because it was open for too long fences its producer too. The note beside the
position tells these apart: an instance that takes over stores the position again, with its own name.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from oncelog.client import (
    AbortableError,
    Admin,
    FatalError,
    IllegalState,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    TimedOut,
    TopicPartition,
)
from oncelog.connect.errors import Fenced, Refused
from oncelog.connect.source import Note, SourceRecord, Stored
from oncelog.connect.status_topic import STATUS_TOPIC, ensure_status_topic
from oncelog.core.failpoints import hit

ID_PREFIX: Final = "connect-"
HEADERS_BYTES: Final = 200
"""What the headers of a record take, about."""
ENCODE_BYTES: Final = 512 * 1024
_PLACE: Final = TopicPartition(STATUS_TOPIC, 0)


class SourceLog:
    def __init__(self, name: str, client: Mapping[str, Any], producer: Mapping[str, Any]) -> None:
        self._name = name
        self._client = client
        self.group = ID_PREFIX + name
        self._instance = uuid.uuid4().hex
        self._admin = Admin({**client, "allow.auto.create.topics": False})
        self._settings = {**client, **producer, "transactional.id": self.group}
        self._producer: Producer | None = None
        self._known_topics: set[str] = set()
        self._waiting: dict[str, list[SourceRecord]] = {}
        self._waiting_bytes = 0
        self._bytes_max = int(producer["max.request.size"])
        self._is_open = False
        self._is_committing = False
        self._has_stored = False
        """Whether this instance has stored a position, with its name beside it."""
        self.records = 0
        """Of the open transaction."""

    def take_over(self) -> None:
        """Become the only writer; if this is not the first time, still be it.

        An older instance that only lost its connections must not fence a newer one: raises Fenced.
        """
        if self._producer is None:
            self._require_no_newer()
            ensure_status_topic(self._client)
            producer = Producer(self._settings)
            try:
                producer.init_transactions()
                self._sign(producer)
            except BaseException as error:
                producer.close(timeout_ms=0)
                if isinstance(error, ProducerFenced):
                    raise self._fenced() from error
                raise
            self._producer = producer
            return
        if self._is_committing:
            self._finish_commit()
        elif self._is_open:
            self._abort()
        stored = self.read()
        if stored is not None:
            self.commit(stored)

    def _require_no_newer(self) -> None:
        """A new producer would fence whoever has taken over while this instance had none."""
        if self._has_stored:
            stored = self.read()
            if stored is not None and not self.is_ours(stored):
                raise self._fenced()

    def _sign(self, producer: Producer) -> None:
        """Store the position again, as ours."""
        stored = self.read()
        if stored is not None:
            producer.begin_transaction()
            producer.send_offsets_to_transaction(self.offsets(stored), self.group)
            producer.commit_transaction()
            self._has_stored = True

    def offsets(self, stored: Stored) -> dict[TopicPartition, OffsetAndMetadata]:
        note = stored.note._replace(instance=self._instance)
        return {_PLACE: OffsetAndMetadata(stored.position, note.text())}

    @property
    def _writer(self) -> Producer:
        if self._producer is None:
            raise IllegalState("a source writes after it has taken over")
        return self._producer

    def read(self) -> Stored | None:
        found = self._admin.group_offsets(self.group, [_PLACE], require_stable=True).get(_PLACE)
        if found is None:
            return None
        try:
            return Stored(found.offset, Note.parse(found.metadata))
        except ValueError as error:
            raise Refused(f"the stored position of {self._name} cannot be used: {error}") from None

    def send(self, record: SourceRecord) -> None:
        """Into the open transaction. Records of a topic are encoded many at a time, in their order."""
        topic, key, value, _, _, partition = record
        if not self._is_open:
            self._begin()
        if topic not in self._known_topics:
            self._ensure_topic(topic)
        size = len(key or b"") + len(value or b"") + HEADERS_BYTES
        if size > self._bytes_max:
            shown = (key or b"").decode(errors="replace")[:100]
            raise Refused(
                f"a record for {topic} with the key {shown} has {size} bytes, and "
                f"max_request_size is {self._bytes_max}: raise it, and max.message.bytes of the topic"
            )
        if partition is not None:
            self._flush(topic)
            self._send_alone(record)
        else:
            self._waiting.setdefault(topic, []).append(record)
            self._waiting_bytes += size
            if self._waiting_bytes > ENCODE_BYTES:
                self._flush_all()
        self.records += 1

    def _send_alone(self, record: SourceRecord) -> None:
        self._writer.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )

    def _flush_all(self) -> None:
        for topic in list(self._waiting):
            self._flush(topic)

    def _flush(self, topic: str) -> None:
        records = self._waiting.pop(topic, [])
        if not self._waiting:
            self._waiting_bytes = 0
        if records:
            columns = {
                "key": pa.array([record.key for record in records], pa.binary()),
                "headers": _headers_column(records),
                "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
            }
            value = pa.array([record.value for record in records], pa.binary())
            with self._errors():
                self._writer.send_columns(topic, value, **columns)

    def _ensure_topic(self, topic: str) -> None:
        """Create it if it is not there, as the broker's settings say."""
        if topic not in self._known_topics:
            self._admin.ensure_topic(topic)
            self._known_topics.add(topic)

    def partitions_of(self, topic: str) -> int:
        """How many the topic has, which is created if it is not there."""
        return len(self._admin.ensure_topic(topic).partitions)

    def _begin(self) -> None:
        if not self._is_open:
            with self._errors():
                self._writer.begin_transaction()
            self._is_open = True

    def commit(self, stored: Stored) -> None:
        """The records since the last commit, and the position behind them."""
        self._begin()
        self._flush_all()
        hit("source.after_produce")
        with self._errors():
            self._writer.send_offsets_to_transaction(self.offsets(stored), self.group)
        hit("source.after_offsets")
        self._is_committing = True
        self._finish_commit()

    def _finish_commit(self) -> None:
        """If it times out, the outcome is unknown; calling it again finds out."""
        try:
            with self._errors():
                self._writer.commit_transaction()
        except AbortableError:
            self._is_committing = False
            self._abort()
            raise
        self._ended()
        self._has_stored = True
        hit("source.after_commit")

    def _abort(self) -> None:
        with self._errors():
            self._writer.abort_transaction()
        self._ended()

    def _ended(self) -> None:
        self._is_open = self._is_committing = False
        self._waiting.clear()
        self.records = self._waiting_bytes = 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            if not self._is_ours():
                raise self._fenced() from error
            self._give_up_producer()
            raise TimedOut(
                f"a transaction of {self._name} was open for longer than transaction_timeout_ms, and the broker has "
                "aborted it; its changes are read again. If that repeats, raise transaction_timeout_ms"
            ) from error
        except FatalError:
            self._give_up_producer()
            raise

    def _is_ours(self) -> bool:
        """Whether nobody else has stored a position since this instance did."""
        stored = self.read()
        return stored is not None and self.is_ours(stored)

    def is_ours(self, stored: Stored) -> bool:
        return stored.note.instance == self._instance

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another instance of {self._name} has taken over; this one stops, and what it had not committed was "
            "aborted"
        )

    def _give_up_producer(self) -> None:
        """Only a new one can go on, and settles what this one has left."""
        self._writer.close(timeout_ms=0)
        self._producer = None
        self._ended()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout_ms=5000)
        self._admin.close()


def _headers_column(records: list[SourceRecord]) -> pa.ListArray:
    headers = [record.headers for record in records]
    offsets = [*itertools.accumulate(map(len, headers), initial=0)]
    pairs = [*itertools.chain.from_iterable(headers)]
    fields = [
        pa.array([name for name, _ in pairs], pa.string()),
        pa.array([value for _, value in pairs], pa.binary()),
    ]
    items = pa.StructArray.from_arrays(fields, ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
