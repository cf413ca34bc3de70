"""What happened to transactional ids: records of `__transaction_state`, read through the Kafka protocol.

Every change of a transaction is a record there, so its history is as long as compaction has left it, and following its
end shows every transaction of a cluster, however short. This works on Apache Kafka as well.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.protocol.primitives import MalformedRequest

if TYPE_CHECKING:
    from oncelog.cli.connection import Connection
    from oncelog.client.admin import Admin

BEGAN: Final = "began"
GREW: Final = "added partitions"
COMMITTING: Final = "commit decided"
COMMITTED: Final = "committed"
ABORTING: Final = "abort decided"
TIMED_OUT: Final = "timed out"
ABORTED: Final = "aborted"
INITIALISED: Final = "initialised"
FORGOTTEN: Final = "forgotten"


@dataclass(frozen=True, slots=True)
class TxnEvent:
    """One record. `state` is empty where the id was forgotten (a tombstone)."""

    time_ms: int
    transactional_id: str
    what: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    start_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()
    offset: int = -1

    def as_row(self) -> dict[str, Any]:
        return {
            "time_ms": self.time_ms,
            "transactional_id": self.transactional_id,
            "what": self.what,
            "state": self.state or None,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "timeout_ms": self.timeout_ms,
            "start_ms": self.start_ms if self.start_ms >= 0 else None,
            "partitions": [str(partition) for partition in self.partitions],
            "offset": self.offset,
        }


class EventReader:
    """Turns records into events. It remembers the last state of each id, which tells a begin from a growth."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def event(self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int) -> TxnEvent | None:
        """None for a record of an unknown kind."""
        from oncelog.coordinator.txn.state import NAME_OF, TxnState
        from oncelog.inspection.internal_topics import decode_transaction_record

        try:
            decoded = decode_transaction_record(key or b"", value)
        except MalformedRequest:
            return None
        if decoded is None:
            return None
        name, content = decoded
        if content is None:
            self._states.pop(name, None)
            return TxnEvent(timestamp_ms, name, FORGOTTEN, offset=offset)
        state = NAME_OF[TxnState(content.transaction_status)]
        before, self._states[name] = self._states.get(name, ""), state
        lasted_ms = content.transaction_last_update_timestamp_ms - content.transaction_start_timestamp_ms
        is_late = content.transaction_start_timestamp_ms >= 0 and lasted_ms >= content.transaction_timeout_ms
        return TxnEvent(
            timestamp_ms,
            name,
            _what(state, before, is_late),
            state,
            content.producer_id,
            content.producer_epoch,
            content.transaction_timeout_ms,
            content.transaction_start_timestamp_ms,
            tuple(
                TopicPartition(topic.topic, number)
                for topic in content.transaction_partitions or ()
                for number in topic.partition_ids
            ),
            offset,
        )


def _what(state: str, before: str, is_late: bool) -> str:
    if state == "Ongoing":
        return GREW if before == "Ongoing" else BEGAN
    if state == "PrepareAbort":
        return TIMED_OUT if is_late else ABORTING
    return {
        "Empty": INITIALISED,
        "PrepareCommit": COMMITTING,
        "CompleteCommit": COMMITTED,
        "CompleteAbort": ABORTED,
    }.get(state, state)


def state_partitions(admin: Admin) -> list[TopicPartition]:
    """All partitions of the log, or none if no transaction was ever made."""
    info = admin.list_topics(internal=True).get(TRANSACTION_STATE_TOPIC)
    return [] if info is None else [TopicPartition(info.name, p.partition) for p in info.partitions]


def read_history(connection: Connection, transactional_id: str) -> list[TxnEvent]:
    """All that is left of one id, in order."""
    from oncelog.client.admin import OffsetSpec
    from oncelog.client.consumer_records import iter_records
    from oncelog.client.fetcher import RangeReader
    from oncelog.client.visibility import IsolationLevel

    with connection.admin() as admin:
        partitions = state_partitions(admin)
        if not partitions:
            raise click.ClickException("there is no __transaction_state yet: nobody has used a transactional id")
        target = partitions[coordinator_partition(transactional_id, len(partitions))]
        start = admin.list_offsets({target: OffsetSpec.EARLIEST})[target].offset
        end = admin.list_offsets({target: OffsetSpec.LATEST})[target].offset
    events = EventReader()
    found = []
    with RangeReader(connection.client_config(), isolation=IsolationLevel.READ_UNCOMMITTED) as reader:
        for chunk in reader.read(*target, start, end):
            for record in iter_records(chunk):
                event = events.event(record.key, record.value, record.timestamp_ms, record.offset)
                if event is not None and event.transactional_id == transactional_id:
                    found.append(event)
    return found


def follow(connection: Connection, *, poll_ms: int) -> Generator[list[TxnEvent], None, None]:
    """Events from now on: a list, which may be empty, at least every `poll_ms`. Broker restarts are waited for."""
    from oncelog.cli.following import Outage, poll_for_ever
    from oncelog.client.consumer import Consumer
    from oncelog.client.consumer_config import CONSUMER_TABLE

    properties = connection.properties([key.name for key in CONSUMER_TABLE], auto_offset_reset="latest")
    events = EventReader()
    with connection.admin() as admin:
        partitions = state_partitions(admin)
        is_new = not partitions
        while not partitions:
            # The log is made with the first transactional id. Whatever is in it then is news.
            yield []
            time.sleep(poll_ms / 1000)
            partitions = state_partitions(admin)
    with Consumer(properties) as consumer:
        consumer.assign(partitions)
        if is_new:
            consumer.seek_to_beginning(*partitions)
        else:
            consumer.seek_to_end(*partitions)
        for records in poll_for_ever(consumer, Outage(), poll_ms):
            found = [events.event(r.key, r.value, r.timestamp_ms, r.offset) for r in records]
            yield [event for event in found if event is not None]
