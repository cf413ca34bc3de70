"""Transaction indexes and producer snapshots against a replay of the log.

The replay is the broker's own `ProducerStateManager`. Two things make it know less than the broker did. Compaction
removes batches: then a transaction may seem to begin later than it did, and a producer to have written less. And
segments are deleted: then what came before is known from the snapshot at the first segment, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core.ids import TopicPartition, next_sequence
from oncelog.inspection import entries
from oncelog.inspection.batch_file import InspectedBatch
from oncelog.inspection.layout import StoredFile
from oncelog.inspection.verification.finding import Finding, Report, Severity
from oncelog.inspection.verification.segment_facts import SegmentFacts
from oncelog.inspection.verification.start_plan import StartPlan
from oncelog.protocol.batch import BatchHeader
from oncelog.storage.producer_entry import ProducerEntry
from oncelog.storage.producer_replay import complete_txn
from oncelog.storage.producer_snapshot import decode_snapshot
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.segment_names import file_name
from oncelog.storage.snapshot_files import SNAPSHOT_SUFFIX
from oncelog.storage.txn_index import ENTRY_VERSION, AbortedTxn

EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of producer.id.expiration.ms."""
_NEVER_MS: Final = 2**62
_REPLAYED: Final = "removes it and replays the log from the snapshot before it"


class _Sender(NamedTuple):
    """What the next batch of a producer must fit to."""

    epoch: int
    last_sequence: int
    is_open: bool

    @classmethod
    def after(cls, header: BatchHeader, before: _Sender | None) -> _Sender:
        if not header.is_control:
            return cls(header.producer_epoch, header.last_sequence, header.is_transactional)
        goes_on = before is not None and before.epoch == header.producer_epoch
        return cls(header.producer_epoch, before.last_sequence if before is not None and goes_on else -1, False)

    def objection(self, header: BatchHeader, *, sequences_free: bool) -> str:
        if header.producer_epoch < self.epoch:
            return f"epoch {header.producer_epoch} follows epoch {self.epoch}"
        if header.is_control:
            return ""
        if self.is_open and not header.is_transactional:
            return "a plain batch, while its transaction is open"
        is_next = header.base_sequence == next_sequence(self.last_sequence)
        if header.producer_epoch == self.epoch and self.last_sequence >= 0 and not sequences_free and not is_next:
            return f"sequence {header.base_sequence} follows {self.last_sequence}"
        return ""


class ProducerChecks:
    def __init__(
        self, partition: TopicPartition, snapshots: Iterable[StoredFile], base_offset: int, report: Report, *,
        is_compacted: bool,
    ) -> None:  # fmt: skip
        self._report = report
        self._is_compacted = is_compacted
        self._base_offset = base_offset
        self._state = ProducerStateManager(partition, producer_expiration_ms=_NEVER_MS)
        self._offsets_present: set[int] = set()
        self._snapshots = self._read(snapshots)
        self._knows_all = base_offset == 0
        self._sequences_free = is_compacted or partition.topic.startswith("__")
        self._senders: dict[int, _Sender] = {}
        self._begin()

    def _read(self, files: Iterable[StoredFile]) -> list[tuple[StoredFile, list[ProducerEntry]]]:
        found = []
        for file in files:
            self._report.files += 1
            self._offsets_present.add(file.base_offset)
            try:
                found.append((file, entries.read_snapshot(file.path)))
            except entries.Unreadable as error:
                self._report.warning("snapshot.corrupt", file.path, f"the snapshot cannot be used: {error}", _REPLAYED)
        return found

    def _begin(self) -> None:
        self._state.clear(self._base_offset)
        for file, _ in self._snapshots:
            if file.base_offset == self._base_offset:
                self._state.load_snapshot(file.path.read_bytes(), 0, end_offset=self._base_offset)
                self._knows_all = True
        for status in self._state.active_producers():
            is_open = status.txn_first_offset >= 0
            self._senders[status.producer_id] = _Sender(status.epoch, status.last_sequence, is_open)
        self._snapshots = [found for found in self._snapshots if found[0].base_offset > self._base_offset]

    # Replay

    def feed(self, facts: SegmentFacts, batch: InspectedBatch) -> None:
        """The next intact batch of the log."""
        header = batch.header
        self.reached(header.base_offset)
        if header.producer_id >= 0:
            self._check_sender(facts.log.path, batch)
        marker = batch.marker()
        if marker is not None and marker.is_abort:
            facts.abort_markers[header.base_offset] = header.producer_id
        completed = self._state.apply(header, control=marker, now_ms=-1)
        if completed is not None:
            complete_txn(self._state, completed, facts.add_aborted)

    def _check_sender(self, path: Path, batch: InspectedBatch) -> None:
        header = batch.header
        known = self._senders.get(header.producer_id)
        what = known.objection(header, sequences_free=self._sequences_free) if known is not None else ""
        if what:
            self._report.warning(
                "producer.order",
                path,
                f"producer {header.producer_id}: {what}",
                "takes it as it is",
                offset=header.base_offset,
                position=batch.position,
            )
        self._senders[header.producer_id] = _Sender.after(header, known)

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset of what is open, by producer id."""
        found = self._state.active_producers()
        return {status.producer_id: status.txn_first_offset for status in found if status.txn_first_offset >= 0}

    # Snapshots

    def reached(self, offset: int) -> None:
        """Nothing below `offset` is missing any more: snapshots up to there can be compared."""
        while self._snapshots and self._snapshots[0][0].base_offset <= offset:
            file, stored = self._snapshots.pop(0)
            self._compare(file, stored)

    def finish(self, folder: Path, end_offset: int, segment_bases: Iterable[int], *, was_clean: bool) -> None:
        """Report snapshots that are missing or wrong, when all batches were read."""
        self.reached(end_offset)
        # Snapshots from before a compaction tell of batches that are gone, so a broker may have dropped them.
        wanted = [base for base in segment_bases if base > self._base_offset and not self._is_compacted]
        for offset in [*wanted, end_offset] if was_clean else wanted:
            if offset not in self._offsets_present and offset > self._base_offset:
                self._report.warning(
                    "snapshot.missing",
                    folder / file_name(offset, SNAPSHOT_SUFFIX),
                    f"there is no snapshot for offset {offset}",
                    "replays the log from the snapshot before it",
                    offset=offset,
                )
        for file, _ in self._snapshots:
            self._report.warning(
                "snapshot.beyond",
                file.path,
                f"a snapshot for offset {file.base_offset}, but the log ends at {end_offset}",
                "removes it",
                offset=file.base_offset,
            )

    def _compare(self, file: StoredFile, stored: list[ProducerEntry]) -> None:
        expected = {entry.producer_id: entry for entry in decode_snapshot(self._state.take_snapshot())}
        found = {entry.producer_id: entry for entry in stored}
        written_ms = int(file.path.stat().st_mtime * 1000)
        for producer_id in sorted(expected.keys() | found.keys()):
            what = self._difference(expected.get(producer_id), found.get(producer_id), written_ms)
            if what:
                self._report.error(
                    "snapshot.differs",
                    file.path,
                    f"producer {producer_id}: {what}",
                    "believes the snapshot: duplicates may be let in, or good batches refused",
                    offset=file.base_offset,
                )

    def _difference(self, replayed: ProducerEntry | None, stored: ProducerEntry | None, written_ms: int) -> str:
        if stored is None:
            if replayed is None or self._may_have_expired(replayed, written_ms):
                return ""
            return "the log has it, the snapshot does not"
        if replayed is None:
            return "" if self._is_compacted or not self._knows_all else "the snapshot has it, the log does not"
        names = ("epoch", "last sequence", "last offset", "coordinator epoch", "open since offset")
        pairs = zip(names, _fields(replayed), _fields(stored), strict=True)
        differing = [f"{name} {there} instead of {here}" for name, here, there in pairs if here != there]
        if stored.last_timestamp < replayed.last_timestamp:
            # It may be later: when its last batch was appended counts as well.
            differing.append(f"timestamp {stored.last_timestamp} instead of {replayed.last_timestamp}")
        if differing and self._is_compacted and self._is_older(replayed, stored):
            return ""
        if differing and not self._knows_all and stored.txn_first_offset < self._base_offset:
            return ""
        return ", ".join(differing)

    def _is_older(self, replayed: ProducerEntry, stored: ProducerEntry) -> bool:
        """Compaction has taken batches away, so the snapshot may know more, but nothing that contradicts.

        And a broker makes the snapshot of a segment that it cleans forget transactions, which have all ended by then.
        """
        last_replayed = replayed.batches[-1].last_offset if replayed.batches else -1
        last_stored = stored.batches[-1].last_offset if stored.batches else -1
        return (
            stored.epoch >= replayed.epoch
            and (last_stored >= last_replayed or stored.epoch > replayed.epoch)
            and (replayed.txn_first_offset < 0 or stored.txn_first_offset <= replayed.txn_first_offset)
        )

    def _may_have_expired(self, entry: ProducerEntry, written_ms: int) -> bool:
        return entry.txn_first_offset < 0 and written_ms - entry.last_timestamp >= EXPIRATION_MS

    # Transaction indexes

    def check_txn_index(self, facts: SegmentFacts, plan: StartPlan) -> None:
        """Once all batches of the segment have been fed."""
        path = facts.path(".txnindex")
        found, odd_bytes = facts.txn_index if facts.txn_index is not None else ([], 0)
        self._report.files += facts.txn_index is not None
        if odd_bytes:
            self._report.warning(
                "txnindex.torn",
                path,
                f"{odd_bytes} bytes follow the last whole entry",
                "rebuilds the transaction index of the segment from the markers when a reader needs it",
            )
        last = facts.base_offset - 1
        seen = set()
        for version, aborted in found:
            seen.add(aborted.last_offset)
            what = self._entry_problem(facts, version, aborted, last)
            if what:
                harm = "read_committed readers may be given aborted records, or miss committed ones"
                self._report.error(
                    "txnindex.entry",
                    path,
                    f"{tuple(aborted)}: {what}",
                    plan.about_txn_index(facts.base_offset, harm),
                    offset=aborted.last_offset,
                )
            last = max(last, aborted.last_offset)
        for offset, expected in facts.aborted.items():
            if offset not in seen:
                harm = f"read_committed readers are given the aborted records from offset {expected.first_offset} on"
                self._report.add(
                    Finding(
                        plan.severity_of_missing(facts.base_offset, offset, Severity.ERROR),
                        "txnindex.missing",
                        path,
                        f"the transaction of producer {expected.producer_id} from offset {expected.first_offset} was "
                        f"aborted at {offset}, and has no entry",
                        plan.about_txn_index(facts.base_offset, harm),
                        offset=offset,
                    )
                )

    def _entry_problem(self, facts: SegmentFacts, version: int, entry: AbortedTxn, last: int) -> str:
        if version != ENTRY_VERSION:
            return f"version {version} is unknown"
        if entry.last_offset <= last:
            return f"its marker does not follow offset {last}"
        producer_id = facts.abort_markers.get(entry.last_offset)
        if producer_id is None:
            return f"there is no abort marker at offset {entry.last_offset}"
        if producer_id != entry.producer_id:
            return f"the marker at offset {entry.last_offset} is of producer {producer_id}"
        expected = facts.aborted.get(entry.last_offset)
        lenient = self._is_compacted or not self._knows_all
        if expected is None:
            # The data is gone: by compaction, or with the segments before the first. Only contradictions count.
            is_fine = lenient and entry.first_offset <= entry.last_offset
            return "" if is_fine else "no data of that transaction is in the log"
        if entry.first_offset != expected.first_offset and not (lenient and entry.first_offset < expected.first_offset):
            return f"the transaction began at offset {expected.first_offset}"
        if entry.last_stable_offset != expected.last_stable_offset and not (
            lenient and entry.last_stable_offset < expected.last_stable_offset
        ):
            return f"the last stable offset was {expected.last_stable_offset} then"
        return ""


def _fields(entry: ProducerEntry) -> tuple[int, ...]:
    last_offset = entry.batches[-1].last_offset if entry.batches else -1
    return (
        entry.epoch,
        entry.last_sequence,
        last_offset,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )
