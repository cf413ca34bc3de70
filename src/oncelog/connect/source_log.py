"""The log's side of a source: its records and its position in one transaction.

The position is a committed offset: of the group `connect-NAME`, for partition 0 of the topic `oncelog-connect`. Every
tool that shows groups shows it. One producer with the transactional id `connect-NAME` writes both; a newer instance
fences it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from oncelog.client import (
    AbortableError,
    Admin,
    FatalError,
    IllegalState,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    TopicPartition,
)
from oncelog.connect.errors import Fenced, Refused
from oncelog.connect.source import Note, SourceRecord, Stored
from oncelog.connect.status_topic import STATUS_TOPIC, ensure_status_topic
from oncelog.core.failpoints import hit

ID_PREFIX: Final = "connect-"
_PLACE: Final = TopicPartition(STATUS_TOPIC, 0)


class SourceLog:
    def __init__(self, name: str, client: Mapping[str, Any], producer: Mapping[str, Any]) -> None:
        self._name = name
        self._client = client
        self._group = ID_PREFIX + name
        self._admin = Admin({**client, "allow.auto.create.topics": False})
        self._settings = {**client, **producer, "transactional.id": self._group}
        self._producer: Producer | None = None
        self._known_topics: set[str] = set()
        self._is_open = False
        self._is_committing = False
        self.records = 0
        """Of the open transaction."""

    def take_over(self) -> None:
        """Become the only writer; if this is not the first time, still be it.

        An older instance that only lost its connections must not fence a newer one: raises Fenced.
        """
        if self._producer is None:
            ensure_status_topic(self._client)
            producer = Producer(self._settings)
            try:
                producer.init_transactions()
            except BaseException:
                producer.close(timeout_ms=0)
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

    @property
    def _writer(self) -> Producer:
        if self._producer is None:
            raise IllegalState("a source writes after it has taken over")
        return self._producer

    def read(self) -> Stored | None:
        found = self._admin.group_offsets(self._group, [_PLACE], require_stable=True).get(_PLACE)
        if found is None:
            return None
        try:
            return Stored(found.offset, Note.parse(found.metadata))
        except ValueError as error:
            raise Refused(f"the stored position of {self._name} cannot be used: {error}") from None

    def send(self, record: SourceRecord) -> None:
        self._begin()
        if record.topic not in self._known_topics:
            self.partitions_of(record.topic)
        self._writer.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )
        self.records += 1

    def partitions_of(self, topic: str) -> int:
        """How many there are. The topic is created if it is not there, as the broker's settings say."""
        self._admin.create_topics([NewTopic(topic)], if_not_exists=True)
        self._known_topics.add(topic)
        return len(self._admin.describe_topics([topic])[topic].partitions)

    def _begin(self) -> None:
        if not self._is_open:
            with self._errors():
                self._writer.begin_transaction()
            self._is_open = True

    def commit(self, stored: Stored) -> None:
        """The records since the last commit, and the position behind them."""
        self._begin()
        hit("source.after_produce")
        offset = OffsetAndMetadata(stored.position, stored.note.text())
        with self._errors():
            self._writer.send_offsets_to_transaction({_PLACE: offset}, self._group)
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
        hit("source.after_commit")

    def _abort(self) -> None:
        with self._errors():
            self._writer.abort_transaction()
        self._ended()

    def _ended(self) -> None:
        self._is_open = self._is_committing = False
        self.records = 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            raise Fenced(
                f"another instance of {self._name} has taken over; this one stops, and what it had not committed was "
                "aborted"
            ) from error
        except FatalError:
            # Only a new producer can go on, and settles what this one has left.
            self._writer.close(timeout_ms=0)
            self._producer = None
            self._ended()
            raise

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout_ms=5000)
        self._admin.close()
