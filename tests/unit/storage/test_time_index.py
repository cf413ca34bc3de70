"""The time index as a file: strictly ascending maxima, look-ups, cuts, and files of a Kafka that was killed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from oncelog.storage.file_cache import FileCache
from oncelog.storage.index_file import CorruptIndexError
from oncelog.storage.time_index import TimeIndex

BASE = 1000


def index_at(path: Path, *, size_bytes_max: int = 1 << 20) -> TimeIndex:
    return TimeIndex(FileCache().handle(path), BASE, size_bytes_max)


@pytest.fixture
def index(tmp_path: Path) -> TimeIndex:
    index = index_at(tmp_path / "x.timeindex")
    index.create()
    return index


def loaded(index: TimeIndex) -> TimeIndex:
    index.write_tail()
    again = index_at(index.file.path)
    again.load()
    return again


def test_only_greater_timestamps_are_added(index: TimeIndex) -> None:
    for timestamp, offset in ((50, 1000), (50, 1003), (40, 1005), (51, 1009), (-1, 1010)):
        index.append_if_greater(timestamp, offset)
    assert index.entries() == [(50, 1000), (51, 1009)]
    assert loaded(index).last == (51, 1009)
    assert index.file.path.read_bytes() == struct.pack(">qiqi", 50, 0, 51, 9)


def test_last_entry_is_known_after_writing_and_loading(index: TimeIndex) -> None:
    index.append_if_greater(50, 1000)
    index = loaded(index)
    index.append_if_greater(50, 1002)
    assert len(index) == 1
    index.append_if_greater(60, 1002)
    assert len(index) == 2


def test_lookup_gives_the_last_maximum_that_is_not_above(index: TimeIndex) -> None:
    assert index.lookup(10**15) == index.last == (-1, BASE)
    for number in range(1, 600):
        index.append_if_greater(number * 10, BASE + number)
    for index_ in (index, loaded(index)):
        assert index_.lookup(9) == (-1, BASE)
        assert index_.lookup(10) == (10, BASE + 1)
        assert index_.lookup(3009) == (3000, BASE + 300)
        assert index_.lookup(10**15) == (5990, BASE + 599)


@pytest.mark.parametrize(("target", "kept"), [(1000, 0), (1001, 1), (1005, 2), (1006, 3)])
def test_truncation_drops_entries_from_an_offset_on(index: TimeIndex, target: int, kept: int) -> None:
    for timestamp, offset in ((50, 1000), (60, 1003), (70, 1005)):
        index.append_if_greater(timestamp, offset)
    index.write_tail()
    index.truncate_to(target)
    index.append_if_greater(55, 1007)
    assert loaded(index).entries() == ([(50, 1000), (60, 1003), (70, 1005)][:kept] + ([(55, 1007)] if kept < 2 else []))


def test_one_slot_is_kept_for_the_last_entry(tmp_path: Path) -> None:
    index = index_at(tmp_path / "x.timeindex", size_bytes_max=36)
    index.create()
    index.append_if_greater(1, BASE)
    assert not index.is_full
    index.append_if_greater(2, BASE)
    assert index.is_full
    index.append_if_greater(3, BASE)
    assert len(index) == 3


@pytest.mark.parametrize("entries", [[], [(5, 0)], [(0, 0), (5, 3)], [(n, n) for n in range(1, 40)]])
def test_zeros_of_a_preallocated_file_are_cut_off(index: TimeIndex, entries: list[tuple[int, int]]) -> None:
    content = b"".join(struct.pack(">qi", *entry) for entry in entries)
    index.file.path.write_bytes(content + bytes(12 * 50))
    again = loaded(index)
    assert again.entries() == [(timestamp, BASE + relative) for timestamp, relative in entries]
    assert index.file.path.read_bytes() == content


def test_single_entry_at_the_start_of_the_epoch_is_no_padding(index: TimeIndex) -> None:
    index.append_if_greater(0, BASE)
    assert loaded(index).entries() == [(0, BASE)]


@pytest.mark.parametrize("entries", [[(5, 0), (5, 1)], [(5, 4), (6, 3)], [(-7, 0)]])
def test_entries_out_of_order_are_found(index: TimeIndex, entries: list[tuple[int, int]]) -> None:
    index.file.path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    with pytest.raises(CorruptIndexError):
        loaded(index).check_order()


def test_torn_file_is_refused(index: TimeIndex) -> None:
    index.file.path.write_bytes(b"\x01" * 13)
    with pytest.raises(CorruptIndexError):
        loaded(index)
