"""The operators' view (KIP-664, KIP-994, KIP-1152): which transactions are listed, and the description of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from oncelog.coordinator.txn.metadata import TxnEntry
from oncelog.coordinator.txn.pattern import LinearPattern
from oncelog.coordinator.txn.state import NAME_OF, STATE_NAMED, TxnState
from oncelog.core.dataclass import dataclass
from oncelog.protocol.messages.describe_transactions import TopicData
from oncelog.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from oncelog.protocol.messages.list_transactions import TransactionState as ListedTransaction


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    states: frozenset[TxnState] | None = None
    """None when the request named no state; it lists nothing when it named only unknown ones."""
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1
    pattern: LinearPattern | None = None
    unknown_states: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        state_names: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> Self:
        """Raises INVALID_REGULAR_EXPRESSION."""
        names = list(state_names)
        return cls(
            states=frozenset(STATE_NAMED[name] for name in names if name in STATE_NAMED) if names else None,
            producer_ids=frozenset(producer_ids),
            longer_than_ms=longer_than_ms,
            pattern=LinearPattern(pattern) if pattern else None,
            unknown_states=tuple(name for name in names if name not in STATE_NAMED),
        )

    def includes(self, entry: TxnEntry, now_ms: int) -> bool:
        metadata = entry.metadata
        return (
            metadata.exists
            and (not self.producer_ids or metadata.producer_id in self.producer_ids)
            and (self.states is None or metadata.state in self.states)
            # An id at rest has no start, which makes it older than anything: Kafka lists it too.
            and (self.longer_than_ms < 0 or now_ms - metadata.start_ms > self.longer_than_ms)
            and (self.pattern is None or self.pattern.matches(entry.transactional_id))
        )


def listing_of(entry: TxnEntry) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=entry.transactional_id,
        producer_id=entry.metadata.producer_id,
        transaction_state=NAME_OF[entry.metadata.state],
    )


def description_of(entry: TxnEntry) -> DescribedTransaction:
    metadata = entry.metadata
    topics: dict[str, TopicData] = {}
    for topic, partition in sorted(entry.partitions):
        topics.setdefault(topic, TopicData(topic=topic)).partitions.append(partition)
    return DescribedTransaction(
        transactional_id=entry.transactional_id,
        transaction_state=NAME_OF[metadata.state],
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=entry.epoch_in_force,
        topics=list(topics.values()),
    )
