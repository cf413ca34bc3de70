"""Who owns a producer id: read from `__transaction_state`, if the data folder holds it.

Partitions know producers by number alone. The coordinator's log has the name of each, also of earlier numbers as far
back as compaction has left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from oncelog.core.errors import KafkaError
from oncelog.core.ids import TRANSACTION_STATE_TOPIC
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.internal_topics import decode_transaction_record
from oncelog.inspection.layout import PartitionFolder, partition_of
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from oncelog.protocol.primitives import MalformedRequest


class StateChange(NamedTuple):
    """One record of `__transaction_state`. `value` is None where the id was forgotten."""

    partition: int
    offset: int
    timestamp: int
    transactional_id: str
    value: TransactionLogValue | None


@dataclass(slots=True)
class TransactionalIds:
    """The names of producer ids, and the last state of each transactional id."""

    names: dict[int, str] = field(default_factory=dict)
    states: dict[str, TransactionLogValue] = field(default_factory=dict)
    is_complete: bool = False
    """The folder has `__transaction_state`, so that an id which is not here is unknown to the coordinator."""

    def producer_ids_of(self, transactional_id: str) -> frozenset[int]:
        return frozenset(number for number, name in self.names.items() if name == transactional_id)


def state_folders(data_folder: Path) -> list[PartitionFolder]:
    paths = sorted(data_folder.glob(f"{TRANSACTION_STATE_TOPIC}-*"))
    return [PartitionFolder(path) for path in paths if path.is_dir() and path.name == str(partition_of(path))]


def state_changes(data_folder: Path) -> Iterator[StateChange]:
    """All that is left of the history of all ids, partition after partition. Damaged records are passed over."""
    for folder in state_folders(data_folder):
        for _, batch in walk(folder):
            if batch.header.is_control:
                continue
            try:
                for record in batch.records():
                    decoded = decode_transaction_record(record.key or b"", record.value)
                    if decoded is not None:
                        yield StateChange(folder.partition.partition, record.offset, record.timestamp, *decoded)
            except (KafkaError, MalformedRequest):
                continue


def read_transactional_ids(data_folder: Path) -> TransactionalIds:
    found = TransactionalIds(is_complete=bool(state_folders(data_folder)))
    for change in state_changes(data_folder):
        if change.value is None:
            found.states.pop(change.transactional_id, None)
            continue
        found.states[change.transactional_id] = change.value
        for producer_id in (change.value.producer_id, change.value.previous_producer_id):
            if producer_id >= 0:
                found.names[producer_id] = change.transactional_id
    return found
