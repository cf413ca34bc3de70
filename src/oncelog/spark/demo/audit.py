"""Reads the raw logs of the output: was every transaction ended the same way on every partition it wrote to?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from oncelog.client import ClientConfig, IsolationLevel, RangeReader, TopicPartition, WorkerClient, worker_client
from oncelog.protocol.batch import HEADER_BYTES, BatchHeader, parse_control, read_header
from oncelog.spark.demo.topics import read_topic
from oncelog.spark.offsets import EARLIEST, LATEST, list_offsets

TransactionKey = tuple[int, int, int]
"""Producer id, epoch, and how many transactions of that epoch came before on the partition."""


@dataclass(slots=True)
class Audit:
    committed: int = 0
    aborted: int = 0
    torn: int = 0
    """Transactions committed on one partition and aborted on another."""
    open: int = 0
    hidden_records: int = 0
    """Of aborted transactions, in the logs and never to be seen."""
    visible_records: int = 0
    committed_records: int = 0

    @property
    def whole(self) -> bool:
        return not self.torn and not self.open and self.visible_records == self.committed_records


@dataclass(slots=True)
class _Outcomes:
    commits: set[TopicPartition] = field(default_factory=set)
    aborts: set[TopicPartition] = field(default_factory=set)
    open: set[TopicPartition] = field(default_factory=set)


def audit(config: ClientConfig, topics: list[str]) -> Audit:
    client = worker_client(config)
    result = Audit()
    outcomes: dict[TransactionKey, _Outcomes] = defaultdict(_Outcomes)
    for topic in topics:
        for partition in client.partitions_of([topic]).get(topic, []):
            _audit_partition(client, partition, outcomes, result)
        result.visible_records += sum(batch.num_rows for batch in read_topic(config, topic))
    for found in outcomes.values():
        result.committed += bool(found.commits) and not found.aborts
        result.aborted += bool(found.aborts) and not found.commits
        result.torn += bool(found.commits and found.aborts)
        result.open += bool(found.open)
    return result


def _audit_partition(
    client: WorkerClient,
    partition: TopicPartition,
    outcomes: dict[TransactionKey, _Outcomes],
    result: Audit,
) -> None:
    """Follow one log: data of a producer belongs to its open transaction until a marker of that producer ends it."""
    running: dict[int, tuple[int, int]] = {}
    ended: dict[tuple[int, int], int] = defaultdict(int)
    for header, is_commit in _raw_batches(client, partition):
        if not header.is_control:
            epoch, records = running.get(header.producer_id, (header.producer_epoch, 0))
            running[header.producer_id] = (epoch, records + header.records_count)
            continue
        if header.producer_id not in running:
            continue
        epoch, records = running.pop(header.producer_id)
        key = (header.producer_id, epoch, ended[(header.producer_id, epoch)])
        ended[(header.producer_id, epoch)] += 1
        (outcomes[key].commits if is_commit else outcomes[key].aborts).add(partition)
        result.committed_records += records if is_commit else 0
        result.hidden_records += 0 if is_commit else records
    for producer_id, (epoch, _) in running.items():
        outcomes[(producer_id, epoch, ended[(producer_id, epoch)])].open.add(partition)


def _raw_batches(client: WorkerClient, partition: TopicPartition) -> Iterator[tuple[BatchHeader, bool]]:
    """Every batch of a log, markers too, with whether it is a commit marker."""
    isolation = IsolationLevel.READ_UNCOMMITTED
    start = list_offsets(client, {partition: EARLIEST}, isolation)[partition]
    end = list_offsets(client, {partition: LATEST}, isolation)[partition]
    for chunk in RangeReader(client, isolation=isolation).read(*partition, start, end):
        for at, header in _whole_batches(chunk.data):
            if header.last_offset >= chunk.start_offset:
                yield header, header.is_control and parse_control(chunk.data, at).is_commit


def _whole_batches(data: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Without the last one, when the broker cut it off."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.size_bytes > len(data) - position:
            return
        yield position, header
        position += header.size_bytes
