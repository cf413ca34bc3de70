"""The filter of a read_committed reader, and what happens to batches that are cut off or damaged."""

from __future__ import annotations

import pytest

from oncelog.client.errors import KafkaError
from oncelog.client.visibility import IsolationLevel, visible_batches
from oncelog.protocol.batch import Record, build_batch, build_control_batch
from oncelog.protocol.messages.fetch import AbortedTransaction

A, B = 7, 8
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def data(offset: int, producer_id: int, *, transactional: bool = True, count: int = 1) -> bytes:
    return build_batch(
        [Record(i, 0, None, b"v") for i in range(count)],
        timestamp_ms=0,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return build_control_batch(
        commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=offset
    )


def aborted(*entries: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer_id, first_offset=offset) for producer_id, offset in entries]


def offsets(
    raw: bytes, isolation: IsolationLevel, entries: list[AbortedTransaction] | None, start: int = 0
) -> list[int]:
    return [header.base_offset for _, header in visible_batches(raw, start, entries, isolation).batches]


SIX = b"".join(
    [
        data(0, A),
        data(1, B),
        marker(2, A, commit=False),
        data(3, A),
        marker(4, B, commit=False),
        data(5, B),
    ]
)


def test_the_worked_example_of_six_batches_returns_three_and_five() -> None:
    assert offsets(SIX, COMMITTED, aborted((A, 0), (B, 1))) == [3, 5]


def test_the_order_of_the_aborted_list_does_not_matter() -> None:
    assert offsets(SIX, COMMITTED, aborted((B, 1), (A, 0))) == [3, 5]


def test_read_uncommitted_sees_all_data_and_no_markers() -> None:
    assert offsets(SIX, UNCOMMITTED, None) == [0, 1, 3, 5]


def test_plain_records_of_an_aborted_producer_id_are_visible() -> None:
    raw = data(0, A) + data(1, A, transactional=False) + marker(2, A, commit=False)
    assert offsets(raw, COMMITTED, aborted((A, 0))) == [1]


def test_a_commit_marker_does_not_end_an_aborted_range() -> None:
    raw = data(0, A) + marker(1, B, commit=True) + data(2, A) + marker(3, A, commit=False)
    assert offsets(raw, COMMITTED, aborted((A, 0))) == []


def test_an_entry_counts_from_the_batch_that_reaches_its_first_offset() -> None:
    raw = data(0, A, count=3) + marker(3, A, commit=True) + data(4, A) + marker(5, A, commit=False)
    assert offsets(raw, COMMITTED, aborted((A, 4))) == [0]


def test_the_position_moves_over_everything_that_is_skipped() -> None:
    raw = data(10, A, count=4) + marker(14, A, commit=False)
    seen = visible_batches(raw, 10, aborted((A, 10)), COMMITTED)
    assert (seen.batches, seen.next_offset) == ([], 15)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    whole = data(0, A)
    seen = visible_batches(whole + data(1, A)[:-1], 0, None, UNCOMMITTED)
    assert ([header.base_offset for _, header in seen.batches], seen.next_offset, seen.whole_bytes) == (
        [0],
        1,
        len(whole),
    )


def test_nothing_but_a_cut_off_batch_does_not_move_the_position() -> None:
    seen = visible_batches(data(0, A)[:65], 0, None, UNCOMMITTED)
    assert (seen.next_offset, seen.whole_bytes) == (0, 0)


def test_batches_below_the_position_are_left_out() -> None:
    assert offsets(SIX, UNCOMMITTED, None, start=2) == [3, 5]


def test_a_wrong_checksum_ends_what_can_be_read_unless_checks_are_off() -> None:
    damaged = bytearray(data(0, A) + data(1, A) + data(2, A))
    damaged[2 * len(data(0, A)) - 1] ^= 1
    seen = visible_batches(bytes(damaged), 0, None, UNCOMMITTED)
    assert [header.base_offset for _, header in seen.batches] == [0]
    assert seen.problem is not None
    assert (seen.next_offset, seen.whole_bytes, seen.problem[:2]) == (1, len(data(0, A)), (len(data(0, A)), 2))
    unchecked = visible_batches(bytes(damaged), 0, None, UNCOMMITTED, check_crcs=False)
    assert len(unchecked.batches) == 3
    assert unchecked.problem is None


def test_old_message_formats_are_refused_by_name() -> None:
    old = bytearray(data(0, A))
    old[16] = 1
    with pytest.raises(KafkaError, match="format 1"):
        visible_batches(bytes(old), 0, None, UNCOMMITTED)


def test_a_marker_that_compaction_emptied_is_skipped() -> None:
    emptied = build_batch(
        [], timestamp_ms=0, base_offset=0, producer_id=A, producer_epoch=0, transactional=True, control=True,
        last_offset_delta=0,
    )  # fmt: skip
    seen = visible_batches(emptied + data(1, A), 0, None, COMMITTED)
    assert [header.base_offset for _, header in seen.batches] == [1]
