"""The transactions of the batches that a pass of the cleaner reads, and which of their markers are still needed.

Batches are shown in offset order. The aborted transactions of the whole range are known beforehand, from the
transaction indexes; all others are committed, because nothing behind the last stable offset is cleaned. A marker is of
use as long as a batch of its transaction is left. One that is kept for an aborted transaction takes its entry along to
the new transaction index; one whose batches are all gone does not, though it may stay until its delete horizon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oncelog.protocol.batch import BatchHeader, ControlMarker
from oncelog.storage.txn_index import AbortedTxn


class MarkerFate(NamedTuple):
    """What is to become of a marker, and the entry that must be in the transaction index if it stays."""

    is_removable: bool
    aborted: AbortedTxn | None = None


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        """Aborted transactions that have begun and whose marker is not seen yet, by producer."""
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        if self._waiting:
            self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def on_control(self, header: BatchHeader, marker: ControlMarker | None) -> MarkerFate:
        """`marker` is None for a control batch that an earlier pass has emptied."""
        self._begin_up_to(header.last_offset)
        if marker is None:
            return MarkerFate(is_removable=True)
        producer_id = header.producer_id
        if marker.is_abort:
            aborted = self._aborted.pop(producer_id, None)
            if producer_id in self._aborted_with_data:
                self._aborted_with_data.remove(producer_id)
                return MarkerFate(is_removable=False, aborted=aborted)
            return MarkerFate(is_removable=True)
        if marker.is_commit:
            if producer_id in self._committed_with_data:
                self._committed_with_data.remove(producer_id)
                return MarkerFate(is_removable=False)
            return MarkerFate(is_removable=True)
        return MarkerFate(is_removable=False)

    def _begin_up_to(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[-1].first_offset <= offset:
            txn = waiting.pop()
            self._aborted.setdefault(txn.producer_id, txn)
