"""The aborted transactions that the answer to a fetch names, so that read_committed readers leave out their records.

Kafka names all that overlap the range of the answer. They can be many: a transaction of one small record takes 150
bytes, and as many as there are producers can be open at a time, so that each batch between overlaps all of them. Here
an answer names NAMED_MAX of them. Where there are more, it ends earlier, after so many batches that the transactions
of their producers are no more than that: readers look for the producer of a batch, so that those of others need not be
named.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from oncelog.cluster.partition import Partition
from oncelog.protocol.batch import CorruptBatchError, iter_headers
from oncelog.protocol.messages.fetch import AbortedTransaction, PartitionData
from oncelog.server.turns import Steps
from oncelog.storage.txn_index import AbortedTxn
from oncelog.storage.txn_index_keeper import SegmentGoneError

NAMED_MAX: Final = 10_000
"""More than there can be in a mebibyte, which readers fetch of a partition unless they are told otherwise."""


_OVER: Final = object()


class AbortedTransactions:
    """The aborted transactions of one Fetch answer."""

    def __init__(self) -> None:
        self._room = NAMED_MAX

    def name(self, partition: Partition, offset: int, upper_bound: int, data: PartitionData) -> Steps[bool]:
        """Name those of a partition that was read from `offset` on, and take batches off that would need too many.

        Searching them may take turns. False if the log has changed meanwhile, and is to be read again.
        """
        found: list[AbortedTxn] = []
        is_cut = False
        search = partition.log.collect_aborted(offset, upper_bound, found)
        while True:
            try:
                is_over = next(search, _OVER) is _OVER
            except SegmentGoneError:
                return False
            if len(found) > self._room and not is_cut:
                is_cut = True
                upper_bound, producers = self._cut(data)
                found.clear()
                search = partition.log.collect_aborted(offset, upper_bound, found, producers)
                continue  # at once: it notices only what goes after it has begun
            if is_over:
                break
            yield
            if partition.closed:
                return False
        self._room = max(0, self._room - len(found))
        data.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset) for aborted in found
        ]
        return True

    def _cut(self, data: PartitionData) -> tuple[int, set[int]]:
        """Where it ends now, and whose batches are left.

        All transactions of a producer but its last end within the range, with a marker. So there are no more of them
        than twice as many as batches. The first partition with data gets all of the room, and progresses.
        """
        records = data.records or b""
        producers: set[int] = set()
        end = end_offset = 0
        try:
            for position, header in islice(iter_headers(records), self._room // 2):
                producers.add(header.producer_id)
                end, end_offset = position + header.size_bytes, header.next_offset
        except CorruptBatchError:
            if not end:
                raise
        if end < len(records):
            data.records = bytes(memoryview(records)[:end])  # a copy, so that the others take no memory
        return end_offset, producers
