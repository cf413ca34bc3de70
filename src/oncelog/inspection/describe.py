"""Every kind of file as rows: plain dictionaries, which a terminal shows as lines and a script reads as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from oncelog.cluster.journal_entries import without_secrets
from oncelog.coordinator.txn.state import NAME_OF, TxnState
from oncelog.core.codec import Codec
from oncelog.core.content import shown
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.inspection import entries
from oncelog.inspection.batch_file import BatchFile, DecodedRecord, InspectedBatch
from oncelog.inspection.internal_topics import Decode, decoder_for
from oncelog.inspection.layout import Kind, StoredFile
from oncelog.inspection.metadata_records import control_record
from oncelog.inspection.selection import Selection
from oncelog.protocol.batch import CONTROL_ABORT, CONTROL_COMMIT

Row = dict[str, Any]
NO_NAMES: Final[dict[int, str]] = {}
MARKERS: Final = {CONTROL_ABORT: "ABORT", CONTROL_COMMIT: "COMMIT"}


def codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return f"unknown-{codec}"


def rows(
    file: StoredFile,
    selection: Selection | None = None,
    *,
    with_records: bool = True,
    names: dict[int, str] = NO_NAMES,
) -> Iterator[Row]:
    """What the file holds. `names` are transactional ids by producer id. Raises entries.Unreadable."""
    selection = selection or Selection()
    if file.kind in (Kind.LOG, Kind.METADATA_SNAPSHOT):
        yield from _log_rows(file, selection, with_records, names)
        return
    for row in _SMALL_FILES[file.kind](file):
        producer_id = row.get("producer_id")
        if selection.producer_ids is not None and producer_id is not None and producer_id not in selection.producer_ids:
            continue
        if producer_id in names:
            row["transactional_id"] = names[producer_id]
        yield row


def _log_rows(file: StoredFile, selection: Selection, with_records: bool, names: dict[int, str]) -> Iterator[Row]:
    topic = CLUSTER_METADATA_TOPIC if file.kind is Kind.METADATA_SNAPSHOT else file.topic
    decode = decoder_for(topic)
    by_key = selection.transactional_id is not None and topic == TRANSACTION_STATE_TOPIC
    batch_file = BatchFile(file.path)
    for batch in batch_file.batches():
        if not by_key and not selection.takes_batch(batch.header):
            continue
        row = batch_row(batch, names)
        if with_records or selection.needs_records or by_key:
            shown = _record_rows(batch, decode, selection, row)
            if by_key:
                wanted = selection.transactional_id
                shown = [r for r in shown if _id_of(r) == wanted]
            if not shown and (selection.needs_records or by_key):
                continue
            if with_records:
                row["records"] = shown
        yield row
    problem = batch_file.problem
    if problem is not None:
        yield {
            "kind": "torn end",
            "position": problem.position,
            "left_bytes": problem.left_bytes,
            "problem": problem.reason,
        }


def _id_of(row: Row) -> str | None:
    key = row.get("key")
    return key["data"].get("transactionalId") if isinstance(key, dict) else None


def batch_row(batch: InspectedBatch, names: dict[int, str] = NO_NAMES) -> Row:
    header = batch.header
    row: Row = {
        "kind": "batch",
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "size_bytes": header.size_bytes,
        "timestamp_type": "LogAppendTime" if header.timestamp_type_append else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "codec": codec_name(header.codec),
        "crc": header.crc,
        "crc_valid": batch.is_valid,
    }
    if batch.delete_horizon_ms is not None:
        row["delete_horizon_ms"] = batch.delete_horizon_ms
    if header.producer_id in names:
        row["transactional_id"] = names[header.producer_id]
    marker = batch.marker()
    if marker is not None and marker.type in MARKERS:
        row["marker"] = {"type": MARKERS[marker.type], "coordinator_epoch": marker.coordinator_epoch}
    return row


def _record_rows(batch: InspectedBatch, decode: Decode | None, selection: Selection, row: Row) -> list[Row]:
    records: list[DecodedRecord] = []
    try:
        records.extend(batch.records())
    except KafkaError as error:
        row["problem"] = error.message
    if batch.header.is_control:
        return [shown for record in records if (shown := _control_row(record)) is not None]
    return [record_row(record, decode) for record in records if selection.takes_record(record)]


def _control_row(record: DecodedRecord) -> Row | None:
    """Records of other types than markers, which only `__cluster_metadata` has; markers are in the batch's row."""
    control_type = int.from_bytes((record.key or b"")[2:4], "big")
    if control_type in MARKERS:
        return None
    found = control_record(control_type, record.value or b"")
    name, content = found if found is not None else (f"control type {control_type}", {})
    return {"offset": record.offset, "timestamp": record.timestamp, "control": name, "value": content}


def record_row(record: DecodedRecord, decode: Decode | None = None) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    if record.sequence >= 0:
        row["sequence"] = record.sequence
    if decode is not None:
        internal = decode(record)
        if not internal.problem:
            row |= {"key": internal.key, "value": _with_state_name(internal.value)}
            return row
        row["problem"] = internal.problem
    row |= shown("key", record.key) | shown("value", record.value)
    if record.headers:
        row["headers"] = [{"name": name} | shown("value", value) for name, value in record.headers]
    return row


def _with_state_name(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """The state of a transaction by its name, beside its number."""
    data = value["data"] if value is not None else {}
    if "transactionStatus" in data:
        data["state"] = NAME_OF.get(TxnState(data["transactionStatus"]), "?")
    return value


def _offset_index(file: StoredFile) -> Iterator[Row]:
    return _index_rows("index entry", entries.read_offset_index(file.path, file.base_offset))


def _time_index(file: StoredFile) -> Iterator[Row]:
    return _index_rows("time index entry", entries.read_time_index(file.path, file.base_offset))


def _index_rows(kind: str, content: entries.IndexContent[Any]) -> Iterator[Row]:
    for entry in content.entries:
        yield {"kind": kind, **entry._asdict()}
    yield from _after_entries(content.odd_bytes, content.is_padded)


def _txn_index(file: StoredFile) -> Iterator[Row]:
    found, odd_bytes = entries.read_txn_index(file.path)
    for version, aborted in found:
        yield {"kind": "aborted transaction", "version": version, **aborted._asdict()}
    yield from _after_entries(odd_bytes, False)


def _after_entries(odd_bytes: int, is_padded: bool) -> Iterator[Row]:
    if is_padded:
        yield {"kind": "padding", "note": "zeros of a preallocated file follow"}
    elif odd_bytes:
        yield {"kind": "torn end", "left_bytes": odd_bytes, "problem": "the last entry is not whole"}


def _snapshot(file: StoredFile) -> Iterator[Row]:
    for producer in entries.read_snapshot(file.path):
        row: Row = {
            "kind": "producer",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "txn_first_offset": producer.txn_first_offset if producer.txn_first_offset >= 0 else None,
            "last_timestamp": producer.last_timestamp,
        }
        if producer.batches:
            batch = producer.batches[-1]
            row |= {
                "first_sequence": batch.first_sequence,
                "last_sequence": batch.last_sequence,
                "base_offset": batch.base_offset,
                "last_offset": batch.last_offset,
            }
        yield row


def _leader_epochs(file: StoredFile) -> Iterator[Row]:
    for entry in entries.read_epochs(file.path):
        yield {"kind": "leader epoch", **entry._asdict()}


def _offsets(file: StoredFile) -> Iterator[Row]:
    for partition, offset in sorted(entries.read_checkpoint(file.path).items()):
        yield {"kind": "checkpoint", "topic": partition.topic, "partition": partition.partition, "offset": offset}


def _properties(file: StoredFile) -> Iterator[Row]:
    yield {"kind": file.kind.value, **entries.read_properties(file.path)}


def _json_file(file: StoredFile) -> Iterator[Row]:
    yield {"kind": file.kind.value, **entries.read_json_file(file.path)}


def _journal(file: StoredFile) -> Iterator[Row]:
    for entry in entries.read_journal(file.path):
        yield {"kind": "change", "change": without_secrets(entry)}


def _lock(file: StoredFile) -> Iterator[Row]:
    holder = file.path.read_text(errors="replace").strip()
    yield {"kind": "lock", "process": holder or None}


_SMALL_FILES: Final[dict[Kind, Callable[[StoredFile], Iterator[Row]]]] = {
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.TXN_INDEX: _txn_index,
    Kind.SNAPSHOT: _snapshot,
    Kind.LEADER_EPOCHS: _leader_epochs,
    Kind.PARTITION_METADATA: _properties,
    Kind.META_PROPERTIES: _properties,
    Kind.OFFSETS: _offsets,
    Kind.CLEAN_SHUTDOWN: _json_file,
    Kind.QUORUM_STATE: _json_file,
    Kind.JOURNAL: _journal,
    Kind.LOCK: _lock,
}
