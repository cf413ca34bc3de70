"""What can be read of a log: batches by offset, offsets by timestamp, the transactions that were aborted."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.storage.leader_epochs import EpochEnd
from oncelog.storage.log_reader import ReadResult
from oncelog.storage.open_log import OpenLog
from oncelog.storage.segment import FoundTimestamp
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError


class LogReading(OpenLog):
    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Whole batches of one segment from `offset` on and below `end_offset`, up to `max_bytes`.

        With `min_one_batch` the first one comes even if it is larger. Where nothing is left in a segment, the next one
        is read. OFFSET_OUT_OF_RANGE outside of the log.
        """
        reader = self._reader
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}",
            )
        end_offset = min(end_offset, self.log_end_offset)
        try:
            return reader.read(
                offset,
                max_bytes,
                end_offset=end_offset,
                reads_to_end=end_offset == self.log_end_offset,
                min_one_batch=min_one_batch,
            )
        except OSError as error:
            raise self._storage_error(f"could not read offset {offset}: {error}") from error

    def available_bytes(self, offset: int, *, end_offset: int) -> int:
        """How many bytes there are to read from `offset` on, without reading them; 0 outside of the log."""
        end_offset = min(end_offset, self.log_end_offset)
        if not self.log_start_offset <= offset < end_offset:
            return 0
        reads_to_end = end_offset == self.log_end_offset
        return self._reader.available_bytes(offset, end_offset=end_offset, reads_to_end=reads_to_end)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Aborted transactions with data in [fetch_offset, upper_bound), in the order of their markers."""
        loaded = self._loaded
        aborted: list[AbortedTxn] = []
        for segment in loaded.segments[self._reader.segment_number(fetch_offset) :]:
            try:
                loaded.txn_indexes.check(segment)
                search = segment.collect_aborted(fetch_offset, upper_bound)
            except CorruptTxnIndexError:
                loaded.txn_indexes.rebuild(segment)
                search = segment.collect_aborted(fetch_offset, upper_bound)
            aborted += search.aborted
            if search.complete:
                break
        return aborted

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> FoundTimestamp | None:
        """The first record below `end_offset` whose timestamp is not below `timestamp`."""
        for segment in self._loaded.segments:
            if segment.largest.timestamp >= timestamp:
                found = segment.find_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def max_timestamp_offset(self) -> FoundTimestamp | None:
        """The first record that has the largest timestamp of the log."""
        return max(self._loaded.segments, key=lambda segment: segment.largest.timestamp).find_largest_timestamp()

    def earliest_offset(self) -> FoundTimestamp:
        return FoundTimestamp(
            NO_TIMESTAMP, self.log_start_offset, self.leader_epochs.epoch_for_offset(self.log_start_offset)
        )

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.leader_epochs.end_offset_for_epoch(epoch, self.log_end_offset)

    def check_txn_indexes(self, end_offset: int) -> None:
        """Of all segments that start below `end_offset`, so that their files can be believed."""
        loaded = self._loaded
        for segment in loaded.segments:
            if segment.base_offset < end_offset:
                loaded.txn_indexes.check(segment)

    def repair_txn_index(self, base_offset: int) -> None:
        """Rebuild the transaction index of the segment that starts there."""
        loaded = self._loaded
        loaded.txn_indexes.rebuild(loaded.segments[self._reader.segment_number(base_offset)])
