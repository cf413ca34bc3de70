"""The lines that Apache Kafka's DumpLogSegments prints, for those who read them by eye or by script.

What is meant is `--deep-iteration --print-data-log` with the decoder of the topic: `--transaction-log-decoder`,
`--offsets-decoder`, `--cluster-metadata-decoder`. Kafka writes remarks (mismatches, gaps) to stderr, after all files;
`KafkaDump.remarks` has them.

Not the same are the order of the remarks, which in Kafka is that of a hash table, the texts of errors inside a record
that cannot be decoded, and the keys of users, which are left out.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from oncelog.cluster.kraft_metadata import parse_snapshot_name
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC
from oncelog.inspection import entries
from oncelog.inspection.batch_file import BatchFile, DecodedRecord, InspectedBatch
from oncelog.inspection.describe import MARKERS, codec_name
from oncelog.inspection.internal_topics import Decode, InternalRecord, decoder_for
from oncelog.inspection.layout import Kind, StoredFile
from oncelog.inspection.metadata_records import control_record

DUMPED_KINDS: Final = frozenset(
    {Kind.LOG, Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TXN_INDEX, Kind.SNAPSHOT, Kind.METADATA_SNAPSHOT}
)


class KafkaDump:
    """Dump files one after the other; `remarks` grows meanwhile."""

    def __init__(self, *, deep: bool = True) -> None:
        self._deep = deep
        self.remarks: list[str] = []

    def lines(self, file: StoredFile, shown_path: str | None = None) -> Iterator[str]:
        """`shown_path` is how the file was given on the command line."""
        shown = shown_path or str(file.path)
        yield f"Dumping {shown}"
        if file.kind in (Kind.LOG, Kind.METADATA_SNAPSHOT):
            yield from self._log(file, shown)
        elif file.kind is Kind.OFFSET_INDEX:
            yield from self._offset_index(file, shown)
        elif file.kind is Kind.TIME_INDEX:
            yield from self._time_index(file, shown)
        elif file.kind is Kind.TXN_INDEX:
            yield from _txn_index(file.path)
        elif file.kind is Kind.SNAPSHOT:
            yield from self._snapshot(file.path)
        else:
            self.remarks.append(f"Ignoring unknown file {shown}")

    def _log(self, file: StoredFile, shown: str) -> Iterator[str]:
        yield _title(file)
        topic = CLUSTER_METADATA_TOPIC if file.kind is Kind.METADATA_SNAPSHOT else file.topic
        decode = decoder_for(topic)
        batch_file = BatchFile(file.path)
        gaps: list[str] = []
        last_offset = -1
        for batch in batch_file.batches():
            yield batch_line(batch)
            for record in self._records(batch, shown) if self._deep else ():
                if record.offset != last_offset + 1:
                    gaps.append(f"  {last_offset} is followed by {record.offset}")
                last_offset = record.offset
                yield record_line(batch, record, decode)
        if batch_file.problem is not None:
            yield f"Found {batch_file.problem.left_bytes} invalid bytes at the end of {file.path.name}"
        if gaps:
            self.remarks += [f"Non-consecutive offsets in {shown}", *gaps]

    def _records(self, batch: InspectedBatch, shown: str) -> list[DecodedRecord]:
        records: list[DecodedRecord] = []
        try:
            records.extend(batch.records())
        except KafkaError as error:
            self.remarks.append(f"Records at position {batch.position} of {shown} cannot be read: {error.message}")
        return records

    def _offset_index(self, file: StoredFile, shown: str) -> Iterator[str]:
        content = entries.read_offset_index(file.path, file.base_offset)
        if not content.entries:
            yield f"{shown} is empty."
            return
        lasts = _last_offsets_at(file.sibling(".log"), {position for _, position in content.entries})
        wrong = []
        for offset, position in content.entries:
            if lasts.get(position) != offset:
                wrong.append(f"  Index offset: {offset}, log offset: {lasts.get(position, -1)}")
            yield f"offset: {offset} position: {position}"
        if wrong:
            self.remarks += [f"Mismatches in :{shown}", *reversed(wrong)]

    def _time_index(self, file: StoredFile, shown: str) -> Iterator[str]:
        times = entries.read_time_index(file.path, file.base_offset).entries
        ends = _batch_ends(file.sibling(".log"), sorted({offset for _, offset in times}))
        before = -1
        mismatches, disorder, missing = [], [], []
        for timestamp, offset in times:
            last_offset, largest = ends.get(offset, (-1, -1))
            if last_offset != offset:
                missing.append(f"Indexed offset: {offset}, found log offset: {last_offset}")
            else:
                if largest != timestamp:
                    mismatches.append(f"  Index timestamp: {timestamp}, log timestamp: {largest}")
                if before >= timestamp:
                    disorder.append(f"  Index timestamp: {timestamp}, Previously indexed timestamp: {before}")
            yield f"timestamp: {timestamp} offset: {offset}"
            before = timestamp
        for title, found_wrong in (
            (f"Found timestamp mismatch in :{shown}", mismatches),
            (f"Found out of order timestamp in :{shown}", disorder),
            ("The following indexed offsets are not found in the log.", missing),
        ):
            if found_wrong:
                self.remarks += [title, *found_wrong]

    def _snapshot(self, path: Path) -> Iterator[str]:
        try:
            producers = entries.read_snapshot(path)
        except entries.Unreadable as error:
            self.remarks.append(f"Snapshot {path.name} is corrupt: {error}")
            return
        for producer in producers:
            line = (
                f"producerId: {producer.producer_id} producerEpoch: {producer.epoch} "
                f"coordinatorEpoch: {producer.coordinator_epoch} "
                f"currentTxnFirstOffset: {_optional(producer.txn_first_offset)} "
                f"lastTimestamp: {producer.last_timestamp}"
            )
            if producer.batches:
                batch = producer.batches[-1]
                line += (
                    f" firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
                    f"lastOffset: {batch.last_offset} offsetDelta: {batch.last_offset - batch.base_offset} "
                    f"timestamp: {batch.timestamp}"
                )
            yield line


def _last_offsets_at(log: Path, positions: set[int]) -> dict[int, int]:
    """The last offsets of the batches that start at these positions."""
    batches = BatchFile(log).batches(whole=False) if log.exists() else ()
    return {batch.position: batch.header.last_offset for batch in batches if batch.position in positions}


def _batch_ends(log: Path, offsets: list[int]) -> dict[int, tuple[int, int]]:
    """For each offset the last offset and the largest timestamp of the first batch that ends at or above it."""
    found: dict[int, tuple[int, int]] = {}
    waiting = deque(offsets)
    for batch in BatchFile(log).batches(whole=False) if log.exists() else ():
        while waiting and waiting[0] <= batch.header.last_offset:
            found[waiting.popleft()] = (batch.header.last_offset, batch.header.max_timestamp)
    return found


def _title(file: StoredFile) -> str:
    if file.kind is Kind.LOG:
        return f"Log starting offset: {file.base_offset}"
    name = parse_snapshot_name(file.path.name)
    if name is None:
        return "KRaft bootstrap snapshot"
    return f"Snapshot end offset: {name.end_offset}, epoch: {name.epoch}"


def _txn_index(path: Path) -> Iterator[str]:
    for version, aborted in entries.read_txn_index(path)[0]:
        yield (
            f"version: {version} producerId: {aborted.producer_id} firstOffset: {aborted.first_offset} "
            f"lastOffset: {aborted.last_offset} lastStableOffset: {aborted.last_stable_offset}"
        )


def batch_line(batch: InspectedBatch) -> str:
    header = batch.header
    horizon = batch.delete_horizon_ms
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.records_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_boolean(header.is_transactional)} "
        f"isControl: {_boolean(header.is_control)} deleteHorizonMs: {_optional(-1 if horizon is None else horizon)} "
        f"position: {batch.position} {_time_name(batch)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {codec_name(header.codec)} crc: {header.crc} "
        f"isvalid: {_boolean(batch.is_valid)}"
    )


def record_line(batch: InspectedBatch, record: DecodedRecord, decode: Decode | None) -> str:
    line = (
        f"| offset: {record.offset} {_time_name(batch)}: {record.timestamp} keySize: {_size(record.key)} "
        f"valueSize: {_size(record.value)} sequence: {record.sequence} "
        f"headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    if batch.header.is_control:
        return line + _control(batch, record)
    if decode is not None:
        return line + "".join(_internal(decode(record), with_key=record.key is not None))
    if record.key is not None:
        line += f" key: {record.key.decode(errors='replace')}"
    if record.value is not None:
        line += f" payload: {record.value.decode(errors='replace')}"
    return line


def _internal(record: InternalRecord, *, with_key: bool) -> Iterable[str]:
    if record.problem:
        yield f" {'key' if with_key else 'payload'}: {record.problem}"
        return
    if record.key is not None:
        yield f" key: {_compact(record.key)}"
    yield " payload: " + (_compact(record.value) if record.value is not None else "<DELETE>")


def _control(batch: InspectedBatch, record: DecodedRecord) -> str:
    marker = batch.marker()
    if marker is not None and marker.type in MARKERS:
        return f" endTxnMarker: {MARKERS[marker.type]} coordinatorEpoch: {marker.coordinator_epoch}"
    control_type = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    try:
        found = control_record(control_type, record.value or b"")
    except KafkaError:
        found = None
    if found is None:
        return f" controlType: UNKNOWN({control_type})"
    name, content = found
    return f" {name}{':' if name == 'LeaderChange' else ''} {_compact(content)}"


def _compact(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _time_name(batch: InspectedBatch) -> str:
    return "LogAppendTime" if batch.header.timestamp_type_append else "CreateTime"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _optional(value: int) -> str:
    return f"OptionalLong[{value}]" if value >= 0 else "OptionalLong.empty"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
