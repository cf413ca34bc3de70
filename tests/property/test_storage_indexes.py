"""The two indexes against plain lists, through writes, reloads, cuts and preallocated files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oncelog.storage import index_file
from oncelog.storage.file_cache import FileCache
from oncelog.storage.offset_index import OffsetIndex
from oncelog.storage.time_index import TimeIndex

BASE = 500


class IndexMachine(RuleBasedStateMachine):
    """One batch after another gets an entry in both."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.page_bytes, index_file.UNWRITTEN_BYTES_MAX = index_file.UNWRITTEN_BYTES_MAX, 40  # type: ignore[misc]
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.offset_index, self.time_index = self.new_indexes()
        self.offset_index.create()
        self.time_index.create()

    def teardown(self) -> None:
        index_file.UNWRITTEN_BYTES_MAX = self.page_bytes  # type: ignore[misc]
        self.offset_index.close()
        self.time_index.close()
        shutil.rmtree(self.folder)

    def new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        files = FileCache(1)
        return (
            OffsetIndex(files.handle(self.folder / "x.index"), BASE, 1 << 20),
            TimeIndex(files.handle(self.folder / "x.timeindex"), BASE, 1 << 20),
        )

    @rule(records=st.integers(1, 20), size=st.integers(1, 500), timestamp=st.integers(0, 1000))
    def add(self, records: int, size: int, timestamp: int) -> None:
        offset, position = self.offsets[-1] if self.offsets else (BASE, 0)
        offset, position = offset + records, position + size
        self.offset_index.append(offset, position)
        self.offsets.append((offset, position))
        self.time_index.append_if_greater(timestamp, offset)
        if timestamp > max((time for time, _ in self.times), default=-1):
            self.times.append((timestamp, offset))

    @rule(offset=st.integers(BASE - 5, BASE + 300))
    def truncate(self, offset: int) -> None:
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.offsets = [entry for entry in self.offsets if entry[0] < offset]
        self.times = [entry for entry in self.times if entry[1] < offset]

    @rule(padding=st.sampled_from([0, 2, 30]))
    def reload(self, padding: int) -> None:
        self.offset_index.write_tail()
        self.time_index.write_tail()
        for index in (self.offset_index, self.time_index):
            index.close()
            with index.file.path.open("ab") as file:
                file.write(bytes(index.entry_format.size * padding))
        self.offset_index, self.time_index = self.new_indexes()
        self.offset_index.load()
        self.time_index.load()

    @rule()
    def write(self) -> None:
        self.offset_index.write_tail()
        self.time_index.write_tail()

    @invariant()
    def entries_agree(self) -> None:
        assert self.offset_index.entries() == self.offsets
        assert self.time_index.entries() == self.times
        assert self.offset_index.last == (self.offsets[-1] if self.offsets else (BASE, 0))
        assert self.time_index.last == (self.times[-1] if self.times else (-1, BASE))
        self.offset_index.check_order()
        self.time_index.check_order()
        self.time_index.check_ends()

    @invariant()
    def lookups_agree(self) -> None:
        for offset in range(BASE - 1, BASE + 300, 37):
            expected = [entry for entry in self.offsets if entry[0] <= offset]
            assert self.offset_index.lookup(offset) == (expected[-1] if expected else (BASE, 0))
        for position in range(0, 3000, 331):
            expected = [entry for entry in self.offsets if entry[1] <= position]
            assert self.offset_index.lookup_position(position) == (expected[-1] if expected else (BASE, 0))
        for timestamp in range(-1, 1001, 91):
            expected = [entry for entry in self.times if entry[0] <= timestamp]
            assert self.time_index.lookup(timestamp) == (expected[-1] if expected else (-1, BASE))


IndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestIndexes = IndexMachine.TestCase
