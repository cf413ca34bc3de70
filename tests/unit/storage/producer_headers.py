"""Headers of batches and markers, and a partition that appends them the way the log does."""

from __future__ import annotations

from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import (
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlMarker,
)
from oncelog.storage.producer_state import (
    CompletedTxn,
    DuplicateBatch,
    Origin,
    ProducerStateManager,
    VerificationGuard,
)

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
PID = 1000
ORDERS = TopicPartition("orders", 0)


def data(
    sequence: int = 0,
    *,
    count: int = 1,
    pid: int = PID,
    epoch: int = 0,
    txn: bool = False,
    offset: int = 0,
    timestamp: int = NOW_MS,
) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT if txn else 0
    return _header(offset, attributes, count, timestamp, pid, epoch, sequence)


def marker(
    *,
    commit: bool = True,
    pid: int = PID,
    epoch: int = 0,
    coordinator: int = 0,
    offset: int = 0,
    timestamp: int = NOW_MS,
) -> tuple[BatchHeader, ControlMarker]:
    header = _header(offset, TRANSACTIONAL_BIT | CONTROL_BIT, 1, timestamp, pid, epoch, -1)
    return header, ControlMarker(CONTROL_COMMIT if commit else CONTROL_ABORT, coordinator)


def _header(
    offset: int, attributes: int, count: int, timestamp: int, pid: int, epoch: int, sequence: int
) -> BatchHeader:
    return BatchHeader(offset, 49, 0, 2, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, sequence, count)


class Partition:
    """Checks, gives the next offset, applies: the log without files. Verifies first where a client would have to."""

    def __init__(self, *, tv2: bool = False, expiration_ms: int = DAY_MS, verification_enabled: bool = True) -> None:
        self.state = ProducerStateManager(ORDERS, producer_expiration_ms=expiration_ms)
        self.state.verification_enabled = verification_enabled
        self.tv2 = tv2
        self.end_offset = 0
        self.high_watermark = 0

    def verify(
        self, epoch: int = 0, sequence: int = 0, *, pid: int = PID, now_ms: int = NOW_MS
    ) -> VerificationGuard | None:
        return self.state.start_verification(pid, epoch, sequence, supports_epoch_bump=self.tv2, now_ms=now_ms)

    def send(
        self, header: BatchHeader, *, guard: VerificationGuard | None = None, origin: Origin = Origin.CLIENT
    ) -> DuplicateBatch | int:
        """The offset of the batch, or where it already was."""
        duplicate = self.state.check(header, origin=origin, guard=guard)
        return duplicate if duplicate is not None else self._write(header)

    def send_verified(self, header: BatchHeader) -> DuplicateBatch | int:
        guard = self.verify(header.producer_epoch, header.base_sequence, pid=header.producer_id)
        return self.send(header, guard=guard)

    def end(
        self,
        *,
        commit: bool = True,
        pid: int = PID,
        epoch: int = 0,
        coordinator: int = 0,
        tv: int = 0,
        origin: Origin = Origin.COORDINATOR,
    ) -> CompletedTxn | None:
        header, control = marker(commit=commit, pid=pid, epoch=epoch, coordinator=coordinator)
        self.state.check(header, origin=origin, control=control, marker_tv=tv)
        header = header._replace(base_offset=self.end_offset)
        completed = self.state.apply(header, control=control, now_ms=NOW_MS)
        self.end_offset = header.next_offset
        if completed is not None:
            self.state.complete(completed)
        return completed

    def _write(self, header: BatchHeader) -> int:
        header = header._replace(base_offset=self.end_offset)
        self.state.apply(header, now_ms=NOW_MS)
        self.end_offset = header.next_offset
        return header.base_offset
