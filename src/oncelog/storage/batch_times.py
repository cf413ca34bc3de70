"""Which record of a batch is the first that is not older than a time: ListOffsets, without an object per record.

The answer is always a record that is younger than all before it in its batch. `BatchTimes` has those and no others, so
that it answers for any time. A batch of a few bytes may hold hundreds of thousands of records, and a header may promise
a time that none of them has. So a look-up reads only so much by itself. For more it raises `LongLookup`: the caller has
a worker read the batch, or takes a break, and goes on behind it. What workers have read is kept in a `BatchTimesCache`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

from oncelog.core.dataclass import dataclass
from oncelog.core.errors import KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from oncelog.protocol.compression import OUTPUT_BYTES_MAX, OutputTooLarge, decompress
from oncelog.protocol.record_walk import walk_records

SHORT_RECORDS_MAX: Final = 5_000
SHORT_BYTES_MAX: Final = 1024 * 1024
SHORT_HEADERS_MAX: Final = 2_000
SHORT_INDEXES_MAX: Final = 200
"""Time indexes that are opened at a stretch: a log may have thousands of segments, and is not in memory at first."""
CACHE_BYTES_MAX: Final = 16 * 1024 * 1024
_ENTRY_BYTES: Final = 500
"""What an entry of the cache takes beside its numbers, about."""

CacheKey = tuple[TopicPartition, int, int, int]


class FoundTimestamp(NamedTuple):
    """A record found by its timestamp. `leader_epoch` is -1 if unknown."""

    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class BatchTimes:
    timestamps: array[int]
    """Growing: of the records that are younger than all before them."""
    offsets: array[int]
    leader_epoch: int

    def first_from(self, timestamp: int) -> FoundTimestamp | None:
        """The first record that is not older."""
        at = bisect_left(self.timestamps, timestamp)
        if at == len(self.timestamps):
            return None
        return FoundTimestamp(self.timestamps[at], self.offsets[at], self.leader_epoch)

    @property
    def size_bytes(self) -> int:
        return 16 * len(self.timestamps) + _ENTRY_BYTES


class LongLookup(Exception):
    """A look-up that takes longer than its caller can wait: it goes on at `start_offset`.

    First a worker is to call `read_times` with `batch` and `first_offset`; without a batch only a break is due.
    """

    def __init__(self, start_offset: int, batch: bytes = b"", first_offset: int = 0) -> None:
        super().__init__(f"goes on at offset {start_offset}")
        self.start_offset = start_offset
        self.batch = batch
        self.first_offset = first_offset


def read_times(batch: bytes, first_offset: int, output_bytes_max: int = OUTPUT_BYTES_MAX) -> BatchTimes:
    """Of the records from `first_offset` on.

    Where they cannot be read, the header is believed: a reader will begin there, and find out what is wrong.
    """
    header = read_header(batch)
    times = BatchTimes(array("q"), array("q"), header.leader_epoch)
    try:
        _add_times(times, header, batch, first_offset, output_bytes_max)
    except OutputTooLarge:
        if output_bytes_max < OUTPUT_BYTES_MAX:
            raise
        _believe(times, header, first_offset)
    except (KafkaError, OverflowError):  # a delta may lead to a time or an offset that no field can hold
        _believe(times, header, first_offset)
    return times


def _add_times(times: BatchTimes, header: BatchHeader, batch: bytes, first_offset: int, output_bytes_max: int) -> None:
    section = batch[HEADER_BYTES:]
    if header.codec:
        section = decompress(header.codec, section, output_bytes_max)
    largest: int | None = None
    for timestamp_delta, offset_delta, _ in walk_records(section, header.records_count):
        timestamp = header.max_timestamp if header.timestamp_type_append else header.base_timestamp + timestamp_delta
        if (largest is None or timestamp > largest) and header.base_offset + offset_delta >= first_offset:
            largest = timestamp
            times.offsets.append(header.base_offset + offset_delta)
            try:
                times.timestamps.append(timestamp)
            except OverflowError:
                times.offsets.pop()
                raise


def _believe(times: BatchTimes, header: BatchHeader, first_offset: int) -> None:
    if not times.timestamps or times.timestamps[-1] < header.max_timestamp:
        last = times.offsets[-1] + 1 if times.offsets else header.base_offset
        times.timestamps.append(header.max_timestamp)
        times.offsets.append(min(max(last, first_offset), header.last_offset))


class BatchTimesCache:
    """The times of batches that workers have read, as many as fit; those that were not used for longest go first."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[CacheKey, BatchTimes] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: CacheKey) -> BatchTimes | None:
        times = self._entries.get(key)
        if times is not None:
            self._entries.move_to_end(key)
        return times

    def put(self, key: CacheKey, times: BatchTimes) -> None:
        old = self._entries.pop(key, None)
        self.size_bytes += times.size_bytes - (old.size_bytes if old is not None else 0)
        self._entries[key] = times
        while self.size_bytes > self._bytes_max:
            self.size_bytes -= self._entries.popitem(last=False)[1].size_bytes


class TimesReader:
    """Reads the times of batches for one look-up."""

    def __init__(self, partition: TopicPartition, cache: BatchTimesCache | None = None) -> None:
        """With a cache, a long look-up raises LongLookup. Without one, it takes the time it needs."""
        self._partition = partition
        self._cache = cache
        self._records_left = SHORT_RECORDS_MAX
        self._headers_left = SHORT_HEADERS_MAX
        self._indexes_left = SHORT_INDEXES_MAX

    def pass_index(self, start_offset: int) -> None:
        """Counts a time index that is about to be opened. Raises LongLookup after too many; what is open stays so."""
        self._indexes_left -= 1
        if self._cache is not None and self._indexes_left < 0:
            raise LongLookup(start_offset)

    def pass_header(self, header: BatchHeader) -> None:
        """Counts a batch whose header was looked at. Raises LongLookup after too many."""
        self._headers_left -= 1
        if self._cache is not None and self._headers_left < 0:
            raise LongLookup(header.base_offset)

    def read(self, batch: bytes, start_offset: int) -> BatchTimes:
        """The times of its records from `start_offset` on. Raises LongLookup."""
        header = read_header(batch)
        first_offset = max(start_offset, header.base_offset)
        if self._cache is None:
            return read_times(batch, first_offset)
        known = self._cache.get((self._partition, header.base_offset, header.crc, first_offset))
        if known is not None:
            return known
        self._records_left -= header.records_count
        if self._records_left >= 0:
            try:
                return read_times(batch, first_offset, SHORT_BYTES_MAX)
            except OutputTooLarge:
                pass
        raise LongLookup(header.next_offset, batch, first_offset)

    def keep(self, long: LongLookup, times: BatchTimes) -> None:
        """What a worker has read."""
        if self._cache is not None:
            header = read_header(long.batch)
            self._cache.put((self._partition, header.base_offset, header.crc, long.first_offset), times)
