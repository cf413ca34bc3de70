"""The rows of `oncelog.inspection.describe` as lines for a person."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from oncelog.cli.output import count_of, show_bytes, show_time
from oncelog.inspection.layout import Kind, StoredFile

Row = dict[str, Any]


def title(file: StoredFile, root: Path) -> str:
    size = file.path.stat().st_size
    what = file.kind.value
    if file.second_suffix:
        what += f", marked {file.second_suffix}"
    elif file.base_offset >= 0:
        what += (
            f" up to offset {file.base_offset}" if file.kind is Kind.SNAPSHOT else f" from offset {file.base_offset}"
        )
    return f"{shown_path(file.path, root)}  ({what}, {show_bytes(size)})"


def shown_path(path: Path, root: Path) -> str:
    """Relative to the folder that was asked for."""
    try:
        relative = path.relative_to(root if root.is_dir() else root.parent)
    except ValueError:
        return str(path)
    return str(relative)


def lines(row: Row) -> Iterator[str]:
    """One line for the row, and one for each of its records."""
    show = _SHOWN.get(row["kind"], _anything)
    yield "  " + show(row)
    for record in row.get("records", ()):
        yield "      " + record_line(record)


def record_line(record: Row) -> str:
    """Offset, time, key and value, headers."""
    parts = [str(record["offset"]), show_time(record["timestamp"])]
    if "control" in record:
        parts.append(record["control"])
    for name in ("key", "value"):
        parts.append(f"{name}={_content(record, name)}")
    if record.get("headers"):
        parts.append("headers=" + ",".join(f"{h['name']}:{_content(h, 'value')}" for h in record["headers"]))
    if "problem" in record:
        parts.append(f"PROBLEM: {record['problem']}")
    return "  ".join(parts)


def _content(record: Row, name: str) -> str:
    if f"{name}_base64" in record:
        return f"base64:{record[f'{name}_base64']}"
    value = record.get(name)
    if value is None:
        return "null"
    if isinstance(value, dict):
        data = value.get("data", value)
        # A state of a transaction, or a type of metadata records. Types of coordinators' records are numbers.
        name = (data.get("state") if isinstance(data, dict) else None) or str(value.get("type", "")).strip("0123456789")
        return (f"{name} " if name else "") + json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # Anything that would break the line or the terminal is shown as JSON escapes it.
    return value if value.isprintable() else json.dumps(value)


def _batch(row: Row) -> str:
    first, last = row["base_offset"], row["last_offset"]
    offsets = str(first) if first == last else f"{first}..{last}"
    parts = [f"@{row['position']}", offsets]
    if "marker" in row:
        parts.append(f"{row['marker']['type']} marker")
    else:
        parts.append(count_of(row["count"], "control record" if row["control"] else "record"))
    parts += [f"{row['size_bytes']} B", show_time(row["max_timestamp"])]
    parts += _sender(row)
    if "marker" in row:
        parts.append(f"coordinator epoch {row['marker']['coordinator_epoch']}")
    parts.append(f"leader epoch {row['leader_epoch']}")
    if row["codec"] != "none":
        parts.append(row["codec"])
    if row["timestamp_type"] != "CreateTime":
        parts.append(row["timestamp_type"])
    if "delete_horizon_ms" in row:
        parts.append(f"delete horizon {show_time(row['delete_horizon_ms'])}")
    if not row["crc_valid"]:
        parts.append("CRC WRONG")
    if "problem" in row:
        parts.append(f"PROBLEM: {row['problem']}")
    return "  ".join(parts)


def _sender(row: Row) -> list[str]:
    if row["producer_id"] < 0:
        return []
    parts = [f"producer {row['producer_id']}:{row['producer_epoch']}"]
    if row["base_sequence"] >= 0:
        parts.append(f"seq {row['base_sequence']}..{row['last_sequence']}")
    if row["transactional"]:
        parts.append(f"txn {row['transactional_id']}" if "transactional_id" in row else "txn")
    return parts


def _torn(row: Row) -> str:
    place = f"@{row['position']}  " if "position" in row else ""
    return f"{place}TORN: {row['problem']} ({row['left_bytes']} bytes)"


def _producer(row: Row) -> str:
    parts = [f"producer {row['producer_id']}:{row['producer_epoch']}"]
    if "transactional_id" in row:
        parts.append(f"txn {row['transactional_id']}")
    if "last_sequence" in row:
        parts.append(f"last batch {row['base_offset']}..{row['last_offset']}")
        parts.append(f"seq {row['first_sequence']}..{row['last_sequence']}")
    if row["txn_first_offset"] is not None:
        parts.append(f"transaction open from {row['txn_first_offset']}")
    parts += [f"coordinator epoch {row['coordinator_epoch']}", show_time(row["last_timestamp"])]
    return "  ".join(parts)


def _aborted(row: Row) -> str:
    who = f" (txn {row['transactional_id']})" if "transactional_id" in row else ""
    return (
        f"producer {row['producer_id']}{who}  from {row['first_offset']}  aborted at {row['last_offset']}  "
        f"last stable offset {row['last_stable_offset']}"
    )


def _anything(row: Row) -> str:
    shown = {name: value for name, value in row.items() if name not in ("kind", "records")}
    return "  ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in shown.items()
    )


_SHOWN: Final[dict[str, Callable[[Row], str]]] = {
    "batch": _batch,
    "torn end": _torn,
    "producer": _producer,
    "aborted transaction": _aborted,
    "index entry": lambda row: f"{row['offset']} @{row['position']}",
    "time index entry": lambda row: f"{show_time(row['timestamp'])} ({row['timestamp']})  up to {row['offset']}",
    "leader epoch": lambda row: f"epoch {row['epoch']} from offset {row['start_offset']}",
    "checkpoint": lambda row: f"{row['topic']}-{row['partition']}  {row['offset']}",
    "padding": lambda row: f"({row['note']})",
    "change": lambda row: json.dumps(row["change"], ensure_ascii=False, separators=(",", ":")),
}
