"""The offset index as a file: entries, look-ups, cuts, and files of a Kafka that was killed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from oncelog.core.invariant import InvariantError
from oncelog.storage.file_cache import FileCache
from oncelog.storage.index_file import UNWRITTEN_BYTES_MAX, CorruptIndexError
from oncelog.storage.offset_index import OffsetIndex

BASE = 1000


def index_at(path: Path, *, size_bytes_max: int = 1 << 20) -> OffsetIndex:
    return OffsetIndex(FileCache().handle(path), BASE, size_bytes_max)


@pytest.fixture
def index(tmp_path: Path) -> OffsetIndex:
    index = index_at(tmp_path / "x.index")
    index.create()
    return index


def fill(index: OffsetIndex, count: int) -> None:
    """Entry n: offset base + 10 n, position 100 n, from n = 1 on."""
    for number in range(1, count + 1):
        index.append(BASE + 10 * number, 100 * number)


def loaded(index: OffsetIndex) -> OffsetIndex:
    index.write_tail()
    again = index_at(index.file.path)
    again.load()
    return again


@pytest.mark.parametrize("count", [0, 1, 7, UNWRITTEN_BYTES_MAX // 8, 1500])
@pytest.mark.parametrize("from_disk", [True, False])
def test_lookup_gives_the_last_entry_that_is_not_above(index: OffsetIndex, count: int, from_disk: bool) -> None:
    fill(index, count)
    if from_disk:
        index = loaded(index)
    assert len(index) == count
    assert index.lookup(BASE) == (BASE, 0)
    assert index.lookup(BASE + 9) == (BASE, 0)
    for number in {1, 2, count // 2, count - 1, count} - {0, -1}:
        if number <= count:
            for offset in (BASE + 10 * number, BASE + 10 * number + 9):
                assert index.lookup(offset) == (BASE + 10 * min(number, count), 100 * min(number, count))
            assert index.lookup_position(100 * number + 99) == (BASE + 10 * number, 100 * number)
    assert index.lookup(2**40) == index.last == (BASE + 10 * count, 100 * count)


def test_entries_are_written_a_page_at_a_time(index: OffsetIndex) -> None:
    fill(index, UNWRITTEN_BYTES_MAX // 8 - 1)
    assert index.file.path.stat().st_size == 0
    index.append(BASE + 10**6, 10**6)
    assert index.file.path.stat().st_size == UNWRITTEN_BYTES_MAX
    assert len(index.entries()) == UNWRITTEN_BYTES_MAX // 8


def test_file_has_big_endian_pairs_of_relative_offset_and_position(index: OffsetIndex) -> None:
    fill(index, 2)
    index.write_tail()
    assert index.file.path.read_bytes() == struct.pack(">iiii", 10, 100, 20, 200)


@pytest.mark.parametrize("written", [0, 5, 10])
@pytest.mark.parametrize(("target", "kept"), [(0, 0), (1010, 0), (1011, 1), (1050, 4), (1100, 9), (1101, 10)])
def test_truncation_drops_entries_from_an_offset_on(index: OffsetIndex, written: int, target: int, kept: int) -> None:
    fill(index, written)
    index.write_tail()
    for number in range(written + 1, 11):
        index.append(BASE + 10 * number, 100 * number)
    index.truncate_to(target)
    assert len(index) == kept
    index.append(BASE + 5000, 5000)
    assert loaded(index).entries() == [(BASE + 10 * n, 100 * n) for n in range(1, kept + 1)] + [(BASE + 5000, 5000)]


def test_full_index_says_so(tmp_path: Path) -> None:
    index = index_at(tmp_path / "x.index", size_bytes_max=31)
    index.create()
    fill(index, 2)
    assert not index.is_full
    index.append(BASE + 30, 300)
    assert index.is_full


def test_offset_beyond_32_bits_is_a_bug(index: OffsetIndex) -> None:
    index.append(BASE + 2**31 - 1, 1)
    with pytest.raises(InvariantError):
        index.append(BASE + 2**31, 2)


@pytest.mark.parametrize("count", [0, 1, 30])
def test_zeros_of_a_preallocated_file_are_cut_off(index: OffsetIndex, count: int) -> None:
    fill(index, count)
    index.write_tail()
    with index.file.path.open("ab") as file:
        file.write(bytes(8 * 100))
    again = loaded(index)
    assert len(again) == count
    assert index.file.path.stat().st_size == 8 * count


def test_torn_file_is_refused(index: OffsetIndex) -> None:
    fill(index, 3)
    index.write_tail()
    index.file.path.write_bytes(index.file.path.read_bytes()[:-1])
    with pytest.raises(CorruptIndexError, match="multiple of 8"):
        loaded(index)


def test_last_entry_must_lie_in_the_log(index: OffsetIndex) -> None:
    fill(index, 3)
    index.check_against(301)
    with pytest.raises(CorruptIndexError):
        index.check_against(300)


@pytest.mark.parametrize("entries", [[(2, 10), (1, 20)], [(1, 10), (2, 10)], [(1, 10), (1, 20)], [(-1, 5)]])
def test_entries_out_of_order_are_found(index: OffsetIndex, entries: list[tuple[int, int]]) -> None:
    index.file.path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    with pytest.raises(CorruptIndexError):
        loaded(index).check_order()


def test_failed_write_keeps_the_entries_for_the_next(index: OffsetIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(index, 3)
    with monkeypatch.context() as broken:
        broken.setattr("os.pwrite", lambda fd, data, position: 5)
        with pytest.raises(OSError, match="index entries"):
            index.write_tail()
    assert len(loaded(index)) == 3
