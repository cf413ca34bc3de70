"""The index of aborted transactions: bytes, order, searching, truncation, damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.invariant import InvariantError
from oncelog.core.steps import at_once
from oncelog.storage.file_cache import FileCache
from oncelog.storage.txn_index import ENTRY_SIZE_BYTES, AbortedTxn, CorruptTxnIndexError, TxnIndex

BASE_OFFSET = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000010.txnindex"


@pytest.fixture
def index(path: Path) -> Iterator[TxnIndex]:
    opened = TxnIndex(FileCache().handle(path), BASE_OFFSET)
    yield opened
    opened.close()


def txn(first: int, last: int, lso: int, pid: int = 1000) -> AbortedTxn:
    return AbortedTxn(pid, first, last, lso)


def collect(index: TxnIndex, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
    """What is found, and whether no later segment can have more."""
    found: list[AbortedTxn] = []
    is_complete = at_once(index.collect(fetch_offset, upper_bound, found))
    return found, is_complete


FOUR = [txn(0, 13, 11, pid=0), txn(11, 15, 12, pid=1), txn(12, 20, 18, pid=2), txn(18, 25, 26, pid=3)]


def test_reference_vector_is_written_byte_for_byte(tmp_path: Path) -> None:
    index = TxnIndex(FileCache().handle(tmp_path / "00000000000000000000.txnindex"), 0)
    index.append(AbortedTxn(producer_id=1000, first_offset=3, last_offset=5, last_stable_offset=6))
    index.close()
    vector = "000000000000000003e8000000000000000300000000000000050000000000000006"
    assert index.path.read_bytes().hex() == vector


def test_file_is_created_with_the_first_entry(index: TxnIndex, path: Path) -> None:
    assert collect(index, 0, 100) == ([], False)
    index.truncate_to(0)
    index.reset()
    index.sanity_check()
    assert list(index.entries()) == []
    assert not path.exists()
    index.append(txn(11, 12, 13))
    assert path.stat().st_size == ENTRY_SIZE_BYTES


def test_entries_are_there_when_the_file_is_opened_again(index: TxnIndex, path: Path) -> None:
    for entry in FOUR[:2]:
        index.append(entry)
    index.close()
    again = TxnIndex(FileCache().handle(path), BASE_OFFSET)
    again.append(FOUR[2])
    assert (list(again.entries()), len(again)) == (FOUR[:3], 3)
    again.sanity_check()
    again.close()


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "complete"),
    [
        (0, 100, [0, 1, 2, 3], False),
        (0, 26, [0, 1, 2, 3], True),
        (0, 32, [0, 1, 2, 3], False),
        (13, 26, [0, 1, 2, 3], True),
        (14, 26, [1, 2, 3], True),
        (16, 26, [2, 3], True),
        (21, 26, [3], True),
        (26, 30, [], False),
        (0, 11, [0], True),
        (0, 12, [0, 1], True),
        (0, 18, [0, 1, 2], True),
        (0, 17, [0, 1, 2], True),
        (12, 13, [0, 1, 2], True),
        (14, 16, [1, 2], True),
        (15, 18, [1, 2], True),
        (19, 25, [2, 3], True),
    ],
)
def test_collect(index: TxnIndex, fetch_offset: int, upper_bound: int, expected: list[int], complete: bool) -> None:
    for entry in FOUR:
        index.append(entry)
    found, is_complete = collect(index, fetch_offset, upper_bound)
    assert ([entry.producer_id for entry in found], is_complete) == (expected, complete)


def test_collect_skips_transactions_that_began_past_the_range_and_goes_on(index: TxnIndex) -> None:
    """The old transaction holds the last stable offset down, so its entry may come after any number of newer ones."""
    for last in range(50, 60):
        index.append(txn(last - 1, last, 12, pid=last))
    index.append(txn(12, 60, 61, pid=7))
    for upper_bound in (20, 49):
        found, is_complete = collect(index, 10, upper_bound)
        assert ([entry.producer_id for entry in found], is_complete) == ([7], True)


def test_collect_in_a_long_index_reads_a_small_part_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100_000
    path.write_bytes(b"".join(txn(2 * n, 2 * n + 1, 2 * n + 2).encode() for n in range(5, count)))
    index, read_bytes, pread = TxnIndex(FileCache().handle(path), BASE_OFFSET), 0, os.pread

    def counting_pread(fd: int, size: int, position: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", counting_pread)
    for fetch_offset in (10, 99_999, 199_990):
        found, is_complete = collect(index, fetch_offset, fetch_offset + 6)
        assert found[0].last_offset in (fetch_offset, fetch_offset + 1)
        assert 3 <= len(found) <= 4
        assert is_complete
    assert read_bytes < 20_000
    index.close()


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (13, 0), (14, 1), (20, 2), (21, 3), (25, 3), (26, 4), (99, 4)])
def test_truncation_removes_the_first_marker_at_the_offset_and_all_behind(
    index: TxnIndex, path: Path, offset: int, left: int
) -> None:
    for entry in FOUR:
        index.append(entry)
    index.truncate_to(offset)
    assert list(index.entries()) == FOUR[:left]
    assert path.stat().st_size == left * ENTRY_SIZE_BYTES
    index.append(txn(30, 40, 41))
    assert list(index.entries()) == [*FOUR[:left], txn(30, 40, 41)]


@pytest.mark.parametrize(
    ("last_offset", "error"), [(13, CorruptTxnIndexError), (12, CorruptTxnIndexError), (5, InvariantError)]
)
def test_markers_must_come_in_order(index: TxnIndex, last_offset: int, error: type[Exception]) -> None:
    index.append(FOUR[0])
    with pytest.raises(error):
        index.append(txn(1, last_offset, 14))
    assert list(index.entries()) == FOUR[:1]


def test_marker_below_the_segment_does_not_belong_here(index: TxnIndex) -> None:
    with pytest.raises(InvariantError):
        index.append(txn(1, BASE_OFFSET - 1, BASE_OFFSET))


def test_reset_removes_the_file(index: TxnIndex, path: Path) -> None:
    for entry in FOUR:
        index.append(entry)
    index.reset()
    assert (len(index), path.exists()) == (0, False)
    index.append(FOUR[0])
    assert list(index.entries()) == FOUR[:1]


@pytest.mark.parametrize("size", [0, 1, 33, 35])
def test_a_file_that_ends_within_an_entry_or_is_empty_is_not_searched(path: Path, size: int) -> None:
    """Its entries may be gone, and with them what hides aborted records."""
    path.write_bytes((FOUR[0].encode() + FOUR[1].encode())[:size])
    index = TxnIndex(FileCache().handle(path), 10)
    with pytest.raises(CorruptTxnIndexError):
        collect(index, 0, 1000)
    index.reset()
    assert collect(index, 0, 1000) == ([], False)


@pytest.mark.parametrize(
    "content",
    [
        FOUR[0].encode() + FOUR[1].encode()[:20],
        FOUR[1].encode() + FOUR[0].encode(),
        FOUR[0].encode() + FOUR[0].encode(),
        txn(1, BASE_OFFSET - 1, BASE_OFFSET).encode(),
        txn(30, 20, 21).encode(),
        b"\0\1" + FOUR[0].encode()[2:],
    ],
    ids=["torn entry", "descending", "twice", "below the segment", "begins after its end", "later version"],
)
def test_sanity_check_notices(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    index = TxnIndex(FileCache().handle(path), BASE_OFFSET)
    with pytest.raises(CorruptTxnIndexError, match=path.name):
        index.sanity_check()
    index.reset()
    index.sanity_check()
    index.close()


def test_torn_entry_is_overwritten_by_the_next(path: Path) -> None:
    path.write_bytes(FOUR[0].encode() + b"torn")
    index = TxnIndex(FileCache().handle(path), BASE_OFFSET)
    index.append(FOUR[1])
    index.sanity_check()
    assert list(index.entries()) == FOUR[:2]
    index.close()


def test_file_cut_behind_our_back_is_noticed_when_read(index: TxnIndex, path: Path) -> None:
    for entry in FOUR:
        index.append(entry)
    os.truncate(path, ENTRY_SIZE_BYTES)
    with pytest.raises(CorruptTxnIndexError):
        list(index.entries())


def test_failed_write_leaves_the_index_as_it_was(index: TxnIndex) -> None:
    index.append(FOUR[0])

    def fail() -> None:
        raise OSError("no space")

    failpoints.arm("txn_index.append.before_write", fail)
    try:
        with pytest.raises(OSError, match="no space"):
            index.append(FOUR[1])
    finally:
        failpoints.disarm("txn_index.append.before_write")
    assert list(index.entries()) == FOUR[:1]
    index.append(FOUR[1])
    assert list(index.entries()) == FOUR[:2]


def test_delete_removes_the_file(index: TxnIndex, path: Path) -> None:
    index.reset()
    index.append(FOUR[0])
    assert path.stat().st_size == ENTRY_SIZE_BYTES
    index.reset()
    assert (len(index), path.exists()) == (0, False)
