"""Reads the raw logs of the output: was every transaction ended the same way on every partition it wrote to?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from oncelog.client import ClientConfig, IsolationLevel, RangeReader, TopicPartition, WorkerClient, worker_client
from oncelog.monitoring.transaction_spans import SpanTracker, TransactionOutcome
from oncelog.spark.demo.topics import read_topic, topic_offsets
from oncelog.spark.offsets import EARLIEST, LATEST
from oncelog.spark.planning import OffsetRange

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
    """Records of aborted transactions: in the logs, and never visible."""
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
        ends = topic_offsets(client, topic, LATEST, IsolationLevel.READ_UNCOMMITTED)
        for partition, start in topic_offsets(client, topic, EARLIEST, IsolationLevel.READ_UNCOMMITTED).items():
            _audit_partition(client, OffsetRange(partition, start, ends[partition]), outcomes, result)
        result.visible_records += sum(batch.num_rows for batch in read_topic(config, topic))
    for found in outcomes.values():
        result.committed += bool(found.commits) and not found.aborts
        result.aborted += bool(found.aborts) and not found.commits
        result.torn += bool(found.commits and found.aborts)
        result.open += bool(found.open)
    return result


def _audit_partition(
    client: WorkerClient,
    wanted: OffsetRange,
    outcomes: dict[TransactionKey, _Outcomes],
    result: Audit,
) -> None:
    tracker, before = SpanTracker(), Counter[tuple[int, int]]()
    chunks = RangeReader(client, isolation=IsolationLevel.READ_UNCOMMITTED).read(
        *wanted.partition, wanted.start, wanted.end
    )
    batches = (one for chunk in chunks for one in chunk.batches_and_markers())
    # All at once: a span is complete when the last batch was fed.
    for span in [span for header, marker in batches for span in tracker.feed(header, marker)]:
        producer = (span.producer_id, span.producer_epoch)
        found = outcomes[(*producer, before[producer])]
        before[producer] += 1
        if span.outcome is TransactionOutcome.OPEN:
            found.open.add(wanted.partition)
        elif span.outcome is TransactionOutcome.COMMITTED:
            found.commits.add(wanted.partition)
            result.committed_records += span.records
        else:
            found.aborts.add(wanted.partition)
            result.hidden_records += span.records
