"""Open transactions as partitions see them, matched with what coordinators know.

A partition knows a producer id, an epoch and where its transaction begins. The coordinator knows the name, the age and
the time-out. A transaction that is open on a partition and that no coordinator knows hangs: nobody will ever end it.

Coordinators do not name ids that ACLs hide from whoever asks. What is hidden must not be taken for what hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from oncelog.client.admin import Admin, ProducerDescription, TransactionDescription, TransactionListing
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.range_reader import reader_of
from oncelog.monitoring.transactions import DECIDED_STATES, OPEN_STATES, age_ms, describe_known

COUNTED_OFFSETS_MAX: Final = 1_000_000
"""Records that wait are counted by reading the headers of their batches, up to so many offsets."""
NOBODYS_ID: Final = "6f1d3c0e-nobody-has-this-transactional-id"
"""Who may ask about it may ask about all ids, unless an ACL denies a single one."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    partition: TopicPartition
    producer: ProducerDescription
    transactional_id: str | None
    description: TransactionDescription | None
    why_hanging: str
    """Empty if its coordinator will end it, and if that is hidden from whoever asks."""

    @property
    def is_hanging(self) -> bool:
        return bool(self.why_hanging)

    @property
    def is_hidden(self) -> bool:
        """ACLs do not let whoever asks see its id: its coordinator may end it."""
        return self.transactional_id is None and not self.is_hanging

    @property
    def is_decided(self) -> bool:
        """Its coordinator has decided the outcome and writes the markers: it must not be aborted."""
        return not self.is_hanging and self.description is not None and self.description.state in DECIDED_STATES

    @property
    def start_offset(self) -> int:
        return self.producer.transaction_start_offset

    def age_ms(self, now_ms: int) -> int | None:
        """Since it began; of a hanging one, since its producer last wrote."""
        known = None if self.is_hanging else age_ms(self.description, now_ms)
        if known is None and self.producer.last_timestamp_ms >= 0:
            return max(now_ms - self.producer.last_timestamp_ms, 0)
        return known

    @property
    def remedy(self) -> tuple[str, ...]:
        """The words of the command that ends it; empty for one that its coordinator is about to end, or may end."""
        if self.is_decided or self.is_hidden:
            return ()
        if self.transactional_id is not None and not self.is_hanging:
            return ("txn", "fence", self.transactional_id)
        place = f"{self.partition.topic}:{self.partition.partition}"
        return ("txn", "abort", place, "--start-offset", str(self.start_offset))

    def as_row(self, now_ms: int) -> dict[str, Any]:
        description = self.description
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start_offset,
            "transactional_id": self.transactional_id,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "state": description.state if description is not None else None,
            "age_ms": self.age_ms(now_ms),
            "timeout_ms": description.timeout_ms if description is not None else None,
            "hanging": self.why_hanging or None,
            "hidden": self.is_hidden,
        }


@dataclass(frozen=True, slots=True)
class HeldBackPartition:
    """A partition whose read_committed readers wait, and the transactions they wait for."""

    partition: TopicPartition
    offsets: PartitionOffsets
    blocking: list[OpenTransaction]
    """Empty for a moment when the marker is written and waits for the high watermark."""
    open_after: list[OpenTransaction]
    """These will hold readers back once the others have ended."""
    is_hidden: bool = False
    """ACLs do not let whoever asks see its producers."""

    def as_row(self, now_ms: int) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "last_stable_offset": self.offsets.last_stable,
            "end_offset": self.offsets.end,
            "blocking": [one.as_row(now_ms) for one in self.blocking],
            "open_after": [one.as_row(now_ms) for one in self.open_after],
            "hidden": self.is_hidden,
        }


def held_back_partitions(admin: Admin, partitions: Collection[TopicPartition]) -> list[HeldBackPartition]:
    offsets = partition_offsets(admin, partitions)
    return join_held_back(offsets, open_transactions(admin, held_back_in(offsets)))


def held_back_in(offsets: Mapping[TopicPartition, PartitionOffsets]) -> list[TopicPartition]:
    """Every open transaction holds the last stable offset of its partitions below their ends: no others need a look."""
    return sorted(partition for partition, found in offsets.items() if found.held_back)


def join_held_back(
    offsets: Mapping[TopicPartition, PartitionOffsets],
    opened: Iterable[OpenTransaction],
    hidden: Collection[TopicPartition] = (),
) -> list[HeldBackPartition]:
    by_partition: dict[TopicPartition, list[OpenTransaction]] = {partition: [] for partition in held_back_in(offsets)}
    for one in opened:
        by_partition[one.partition].append(one)
    found = []
    for partition, own in by_partition.items():
        blocking = [one for one in own if one.start_offset <= offsets[partition].last_stable] or own[:1]
        after = own[len(blocking) :]
        found.append(HeldBackPartition(partition, offsets[partition], blocking, after, partition in hidden))
    return found


def count_waiting(admin: Admin, held: HeldBackPartition) -> int | None:
    """Records that wait; None if there are too many offsets to count them."""
    start, end = held.offsets.last_stable, held.offsets.end
    if end - start > COUNTED_OFFSETS_MAX:
        return None
    with reader_of(admin) as reader:
        return sum(
            header.records_count
            for chunk in reader.read(*held.partition, start, end)
            for _, header in chunk.batches
            if header.base_offset >= start
        )


def open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Oldest first on each partition."""
    found = open_producers(admin, list(partitions))
    if not found:
        return []
    listings = admin.list_transactions(producer_ids={producer.producer_id for _, producer in found})
    descriptions = describe_known(admin, [listing.transactional_id for listing in listings])
    return without_ended(admin, join_open(found, listings, descriptions))


def open_producers(
    admin: Admin, partitions: Collection[TopicPartition]
) -> list[tuple[TopicPartition, ProducerDescription]]:
    """The producers that have a transaction open, oldest first on each partition."""
    return open_ones(admin.describe_producers(partitions)) if partitions else []


def open_ones(
    found: Mapping[TopicPartition, Iterable[ProducerDescription]],
) -> list[tuple[TopicPartition, ProducerDescription]]:
    return [
        (partition, producer)
        for partition, producers in sorted(found.items())
        for producer in sorted(producers, key=lambda p: p.transaction_start_offset)
        if producer.transaction_start_offset >= 0
    ]


def join_open(
    found: Iterable[tuple[TopicPartition, ProducerDescription]],
    listings: Iterable[TransactionListing],
    descriptions: Mapping[str, TransactionDescription],
) -> list[OpenTransaction]:
    by_producer = {listing.producer_id: listing for listing in listings}
    opened = []
    for partition, producer in found:
        listing = by_producer.get(producer.producer_id)
        description = descriptions.get(listing.transactional_id) if listing is not None else None
        why = _why_hanging(partition, producer, listing, description)
        name = listing.transactional_id if listing is not None else None
        opened.append(OpenTransaction(partition, producer, name, description, why))
    return opened


def _why_hanging(
    partition: TopicPartition,
    producer: ProducerDescription,
    listing: TransactionListing | None,
    description: TransactionDescription | None,
) -> str:
    if listing is None:
        return f"no coordinator knows producer {producer.producer_id}"
    name = listing.transactional_id
    state = listing.state if description is None else description.state
    if state not in OPEN_STATES:
        return f"{name} is in state {state}"
    if description is None or state in DECIDED_STATES:
        return ""
    if description.producer_epoch > producer.producer_epoch:
        return f"{name} is at epoch {description.producer_epoch} by now"
    if partition not in description.partitions:
        return f"the transaction of {name} does not include {partition}"
    return ""


def without_ended(admin: Admin, opened: list[OpenTransaction]) -> list[OpenTransaction]:
    """A transaction that ended between the two questions looks as if it hung: partitions are asked about it again.

    So does one whose id is hidden.
    """
    suspects = {one.partition for one in opened if one.is_hanging}
    still_open = {(p, d.producer_id, d.transaction_start_offset) for p, d in open_producers(admin, suspects)}
    left = [
        one
        for one in opened
        if not one.is_hanging or (one.partition, one.producer.producer_id, one.start_offset) in still_open
    ]
    if all(one.transactional_id is not None for one in left) or sees_all_ids(admin):
        return left
    return [one if one.transactional_id is not None else replace(one, why_hanging="") for one in left]


def sees_all_ids(admin: Admin) -> bool:
    """Whether ACLs let whoever asks see the transactional ids of everybody."""
    try:
        admin.describe_transactions([NOBODYS_ID])
    except KafkaError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return False
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    return True


def hanging_transactions(opened: Iterable[OpenTransaction], older_than_ms: int, now_ms: int) -> list[OpenTransaction]:
    """Open transactions that no coordinator will end and whose producers have not written for some time."""
    ages = [(one, one.age_ms(now_ms)) for one in opened if one.is_hanging]
    return [one for one, age in ages if age is None or age >= older_than_ms]
