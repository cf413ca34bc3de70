"""The snapshot file: bytes, corruption, and what a partition knows after loading one."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from oncelog.core.errors import KafkaError
from oncelog.core.ids import SEQUENCE_MAX
from oncelog.storage.producer_entry import CachedBatch, ProducerEntry
from oncelog.storage.producer_snapshot import CorruptSnapshotError, decode_snapshot, encode_snapshot
from oncelog.storage.producer_state import DuplicateBatch, Origin, ProducerStateManager
from tests.unit.storage.producer_headers import DAY_MS, NOW_MS, ORDERS, PID, Partition, data

ONE_PRODUCER = bytes.fromhex(
    "0001b2dd2a450000000100000000000003e80002000000010000000000000004000000010000018bcfe5680100000007ffffffffffffffff"
)


def reloaded(partition: Partition, now_ms: int = NOW_MS) -> Partition:
    twin = Partition(tv2=partition.tv2)
    twin.state.load_snapshot(partition.state.take_snapshot(), now_ms, end_offset=partition.end_offset)
    twin.end_offset = partition.end_offset
    return twin


def resealed(body: bytes) -> bytes:
    """A snapshot with a valid checksum over whatever follows it."""
    return ONE_PRODUCER[:2] + struct.pack(">I", google_crc32c.value(body)) + body


def test_reference_vector_is_written_byte_for_byte() -> None:
    batch = CachedBatch(0, 1, 3, 4, NOW_MS + 1)
    entry = ProducerEntry(PID, 2, coordinator_epoch=7, last_timestamp=NOW_MS + 1, batch=batch)
    assert encode_snapshot([entry]) == ONE_PRODUCER


def test_reference_vector_is_read_back() -> None:
    (entry,) = decode_snapshot(ONE_PRODUCER)
    assert (entry.producer_id, entry.epoch, entry.coordinator_epoch, entry.txn_first_offset) == (PID, 2, 7, -1)
    assert entry.batches == [CachedBatch(0, 1, 3, 4, NOW_MS + 1)]
    assert entry.next_sequence == 2


def test_partition_without_producers_has_a_snapshot_of_ten_bytes() -> None:
    empty = encode_snapshot([])
    assert len(empty) == 10
    assert decode_snapshot(empty) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty file", b""),
        ("torn header", ONE_PRODUCER[:9]),
        ("torn entry", ONE_PRODUCER[:-1]),
        ("torn entry, resealed", resealed(ONE_PRODUCER[6:-1])),
        ("trailing bytes, resealed", resealed(ONE_PRODUCER[6:] + b"\0")),
        ("negative count, resealed", resealed(b"\xff\xff\xff\xff")),
        ("later version", b"\0\2" + ONE_PRODUCER[2:]),
        ("flipped bit", ONE_PRODUCER[:20] + b"\1" + ONE_PRODUCER[21:]),
        ("zero filled", bytes(56)),
    ],
)
def test_corrupt_snapshot_is_refused_and_leaves_the_state_alone(name: str, content: bytes) -> None:
    partition = Partition()
    partition.send(data(0))
    before = partition.state.take_snapshot()
    with pytest.raises(CorruptSnapshotError):
        partition.state.load_snapshot(content, NOW_MS, end_offset=99)
    assert (partition.state.take_snapshot(), partition.state.map_end_offset) == (before, 1), name


def test_every_flipped_byte_is_noticed() -> None:
    for position in range(len(ONE_PRODUCER)):
        broken = bytearray(ONE_PRODUCER)
        broken[position] ^= 0x40
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(broken))


def test_loaded_partition_goes_on_where_the_old_one_stopped() -> None:
    partition = Partition()
    partition.send(data(0, count=3))
    partition.send_verified(data(0, pid=7, epoch=2, txn=True))
    twin = reloaded(partition)
    assert twin.state.active_producers() == partition.state.active_producers()
    assert twin.state.map_end_offset == 4
    assert twin.state.first_undecided_offset == 3
    assert twin.send(data(3)) == 4
    assert twin.send(data(1, pid=7, epoch=2, txn=True)) == 5
    assert twin.end(pid=7, epoch=2) is not None


def test_duplicate_window_is_one_batch_wide_after_loading() -> None:
    partition = Partition()
    for sequence in range(3):
        partition.send(data(sequence))
    twin = reloaded(partition)
    assert twin.send(data(2)) == DuplicateBatch(2, 2, NOW_MS)
    with pytest.raises(KafkaError):
        twin.send(data(1))


def test_batch_that_wrapped_around_is_recognised_after_loading() -> None:
    partition = Partition()
    partition.send(data(SEQUENCE_MAX - 1, count=4))
    assert reloaded(partition).send(data(SEQUENCE_MAX - 1, count=4)) == DuplicateBatch(0, 3, NOW_MS)


def test_ongoing_transactions_are_ordered_by_offset_whatever_the_order_in_the_file() -> None:
    entries = [ProducerEntry(pid, 0, last_timestamp=NOW_MS, txn_first_offset=first) for pid, first in [(1, 9), (2, 4)]]
    state = ProducerStateManager(ORDERS, producer_expiration_ms=DAY_MS)
    state.load_snapshot(encode_snapshot(entries), NOW_MS, end_offset=20)
    assert state.first_undecided_offset == 4


def test_idle_producers_are_skipped_on_load_unless_a_transaction_is_open() -> None:
    partition = Partition()
    partition.send(data(0, pid=1))
    partition.send_verified(data(0, pid=2, txn=True))
    assert len(reloaded(partition, NOW_MS + DAY_MS - 1).state) == 2
    twin = reloaded(partition, NOW_MS + DAY_MS)
    assert [row.producer_id for row in twin.state.active_producers()] == [2]
    assert twin.state.check(data(55, pid=1), origin=Origin.CLIENT) is None


def test_loading_replaces_what_was_there() -> None:
    partition = Partition()
    partition.send_verified(data(0, pid=2, txn=True))
    partition.state.load_snapshot(ONE_PRODUCER, NOW_MS, end_offset=6)
    assert [row.producer_id for row in partition.state.active_producers()] == [PID]
    assert partition.state.first_unstable_offset is None
