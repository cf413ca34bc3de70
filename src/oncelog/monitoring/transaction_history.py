"""What happened to transactional ids: the records of `__transaction_state`, read through the Kafka protocol.

Every change of a transaction is a record there. The history of an id goes back as far as compaction has left it, and
following the end of the topic shows every transaction of a cluster, however short. This works on Apache Kafka as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer import Consumer
from oncelog.client.consumer_records import iter_records
from oncelog.coordinator.txn.records import DecodedRecord, decode_record
from oncelog.coordinator.txn.state import NAME_OF, TxnState
from oncelog.core.dataclass import dataclass
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.offsets import partition_offsets
from oncelog.monitoring.range_reader import reader_of
from oncelog.protocol.primitives import MalformedRequest

BEGAN: Final = "began"
GREW: Final = "added partitions"
COMMITTING: Final = "commit decided"
COMMITTED: Final = "committed"
ABORTING: Final = "abort decided"
TIMED_OUT: Final = "timed out"
ABORTED: Final = "aborted"
INITIALISED: Final = "initialised"
FORGOTTEN: Final = "forgotten"

_EVENT_OF: Final = {
    TxnState.EMPTY: INITIALISED,
    TxnState.PREPARE_COMMIT: COMMITTING,
    TxnState.COMPLETE_COMMIT: COMMITTED,
    TxnState.COMPLETE_ABORT: ABORTED,
}


@dataclass(frozen=True, slots=True)
class TransactionEvent:
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


class EventDecoder:
    """Turns records into events. It remembers the last state of each id, to tell a begin from added partitions."""

    def __init__(self) -> None:
        self._states: dict[str, TxnState] = {}

    def events(self, records: Iterable[Any]) -> list[TransactionEvent]:
        """Records of an unknown kind are left out."""
        decoded = (self._event(record) for record in records)
        return [event for event in decoded if event is not None]

    def _event(self, record: Any) -> TransactionEvent | None:
        try:
            decoded = decode_record(record.key or b"", record.value)
        except MalformedRequest:
            return None
        if not isinstance(decoded, DecodedRecord):
            return None
        name, metadata = decoded.transactional_id, decoded.metadata
        if metadata is None:
            self._states.pop(name, None)
            return TransactionEvent(record.timestamp_ms, name, FORGOTTEN, offset=record.offset)
        before = self._states.get(name)
        self._states[name] = metadata.state
        lasted_ms = metadata.last_update_ms - metadata.start_ms
        is_late = metadata.start_ms >= 0 and lasted_ms >= metadata.timeout_ms
        return TransactionEvent(
            record.timestamp_ms,
            name,
            _what(metadata.state, before, is_late),
            NAME_OF[metadata.state],
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.timeout_ms,
            metadata.start_ms,
            tuple(sorted(metadata.partitions)),
            record.offset,
        )


def _what(state: TxnState, before: TxnState | None, is_late: bool) -> str:
    if state is TxnState.ONGOING:
        return GREW if before is TxnState.ONGOING else BEGAN
    if state is TxnState.PREPARE_ABORT:
        return TIMED_OUT if is_late else ABORTING
    return _EVENT_OF[state]


def state_partitions(admin: Admin) -> list[TopicPartition]:
    """All partitions of `__transaction_state`; none if no transactional id was ever used."""
    info = admin.list_topics(internal=True).get(TRANSACTION_STATE_TOPIC)
    return [] if info is None else [TopicPartition(info.name, p.partition) for p in info.partitions]


def read_history(admin: Admin, transactional_id: str, *, offsets_max: int | None = None) -> list[TransactionEvent]:
    """What is left of one id, in order; with `offsets_max`, only what is in so many last offsets of its partition."""
    partitions = state_partitions(admin)
    if not partitions:
        return []
    target = partitions[coordinator_partition(transactional_id, len(partitions))]
    offsets = partition_offsets(admin, [target])[target]
    start = offsets.start if offsets_max is None else max(offsets.start, offsets.end - offsets_max)
    decoder = EventDecoder()
    with reader_of(admin, check_crcs=True) as reader:
        return [
            event
            for chunk in reader.read(*target, start, offsets.end)
            for event in decoder.events(iter_records(chunk))
            if event.transactional_id == transactional_id
        ]


def initialisations(events: Iterable[TransactionEvent], since_ms: int) -> int:
    """How often a producer started with the id. Many within a minute: several producers use it and fence each other."""
    return sum(event.what == INITIALISED and event.time_ms >= since_ms for event in events)


class TransactionFollower:
    """The events of all transactional ids from now on."""

    def __init__(self, admin: Admin, consumer: Consumer) -> None:
        self._admin = admin
        self._consumer = consumer
        self._decoder = EventDecoder()
        self._is_new = False
        """The topic did not exist when following began, so all that is in it is news."""
        self._is_assigned = False

    def poll(self, timeout_ms: int) -> list[TransactionEvent]:
        """The next events; none if nothing happens within the time. Raises KafkaError."""
        if not self._is_assigned and not self._assign():
            # The topic is created with the first transactional id.
            time.sleep(timeout_ms / 1000)
            return []
        return self._decoder.events(self._consumer.poll(timeout_ms))

    def _assign(self) -> bool:
        partitions = state_partitions(self._admin)
        if not partitions:
            self._is_new = True
            return False
        self._consumer.assign(partitions)
        seek = self._consumer.seek_to_beginning if self._is_new else self._consumer.seek_to_end
        seek(*partitions)
        self._is_assigned = True
        return True
