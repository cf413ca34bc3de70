"""One record in full: its contents as text, as a JSON tree and in hex, and the batch that it came in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.console.contents import Contents
from oncelog.console.messages import (
    BUDGET_S,
    FETCH_BYTES,
    Found,
    Outcomes,
    Request,
    content_row,
    cut,
    rows_of,
    schema_row,
)
from oncelog.core.content import shown
from oncelog.core.ids import SEQUENCE_MAX, TopicPartition
from oncelog.inspection.describe import codec_name
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.protocol.batch import BatchHeader

SHOWN_BYTES_MAX: Final = 1024 * 1024
HEX_BYTES_MAX: Final = 4096
JSON_BYTES_MAX: Final = 256 * 1024
TREE_NODES_MAX: Final = 2_000
TREE_DEPTH_MAX: Final = 30
SCHEMA_PREFIX_BYTES: Final = 5
"""A zero and the id, as clients of schema registries begin keys and values."""


def find_record(admin: Admin, partition: TopicPartition, offset: int, contents: Contents) -> Found | None:
    """The record or marker at an offset, whatever became of it; None if there is none."""
    request = Request(partition, offset, 1, IsolationLevel.READ_UNCOMMITTED, contents=contents)
    with RangeReader(
        admin, isolation=request.isolation, fetch_bytes=FETCH_BYTES, idle_timeout_ms=BUDGET_S * 1000
    ) as reader:
        for chunk in reader.read(*partition, offset, offset + 1):
            for header, seen, marker in rows_of(chunk, request):
                if seen is None and header.base_offset == offset:
                    return Found(header, None, marker)
                if seen is not None and seen.record.offset == offset:
                    # A value that was decoded is shown so; its bytes are in the file.
                    return Found(header, seen.record, None, 0, seen.decoded, seen.raw)
    return None


def record_row(admin: Admin, found: Found, partition: TopicPartition, offsets: PartitionOffsets) -> dict[str, Any]:
    """A record as JSON values."""
    header, record = found.header, found.record
    row: dict[str, Any] = {"batch": batch_row(header), "kind": found.kind, "next_offset": header.next_offset}
    if record is None:
        return {**row, "offset": header.base_offset, "time_ms": header.max_timestamp, "outcome": None}
    request = Request(partition, record.offset, 1, IsolationLevel.READ_UNCOMMITTED)
    sequence = header.base_sequence
    return {
        **row,
        "offset": record.offset,
        "time_ms": record.timestamp_ms,
        "time_set_by": "broker" if header.timestamp_type_append else "producer",
        "outcome": Outcomes.of(admin, request, [found], offsets).name(header),
        "sequence": (sequence + record.offset - header.base_offset) & SEQUENCE_MAX if sequence >= 0 else None,
        "decoded": content_row(record, 0, is_cut=False).get("decoded"),
        "key": part_row(record.key),
        "value": part_row(record.value),
        **schema_row(found.decoded),
        "headers": [{"name": name, **shown("value", cut(content))} for name, content in record.headers],
    }


def batch_row(header: BatchHeader) -> dict[str, Any]:
    is_idempotent = header.producer_id >= 0
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.records_count,
        "bytes": header.size_bytes,
        "compression": codec_name(header.codec),
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id if is_idempotent else None,
        "producer_epoch": header.producer_epoch if is_idempotent else None,
        "base_sequence": header.base_sequence if header.base_sequence >= 0 else None,
        "last_sequence": header.last_sequence if header.base_sequence >= 0 else None,
        "transactional": header.is_transactional,
    }


def part_row(data: bytes | None) -> dict[str, Any] | None:
    """A key or a value; None for null."""
    if data is None:
        return None
    some = cut(data, SHOWN_BYTES_MAX) or b""
    row = {
        "bytes": len(data),
        "cut": len(some) < len(data),
        "hex": hex_lines(data),
        "hex_cut": len(data) > HEX_BYTES_MAX,
    }
    return {**row, **shown("text", some), "json": json_tree(data), "schema_id": schema_id(data)}


def schema_id(data: bytes) -> int | None:
    """What a registry's client would take for the id of a schema."""
    if len(data) < SCHEMA_PREFIX_BYTES or data[0] != 0:
        return None
    return int.from_bytes(data[1:SCHEMA_PREFIX_BYTES], "big")


def hex_lines(data: bytes) -> str:
    """Sixteen bytes a line, with their offsets and what is ASCII of them."""
    lines = []
    for at in range(0, min(len(data), HEX_BYTES_MAX), 16):
        some = data[at : min(at + 16, HEX_BYTES_MAX)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:08x}  {some.hex(' '):<47}  {text}")
    return "\n".join(lines)


def json_tree(data: bytes) -> dict[str, Any] | None:
    """An object or a list as nodes with a name, a text and children; None if it is neither, or too large for a page."""
    if len(data) > JSON_BYTES_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        found = json.loads(data)
        nodes = iter(range(TREE_NODES_MAX))
        return _node("", found, nodes, 0)
    except (ValueError, RecursionError, StopIteration):
        return None


def _node(name: str, value: Any, nodes: Iterator[int], depth: int) -> dict[str, Any]:
    """Raises StopIteration if there are too many nodes, RecursionError if they are too deep."""
    next(nodes)
    if depth > TREE_DEPTH_MAX:
        raise RecursionError
    if isinstance(value, dict):
        children = [_node(key, one, nodes, depth + 1) for key, one in value.items()]
        return {"name": name, "text": f"{{{len(children)}}}", "children": children}
    if isinstance(value, list):
        children = [_node(str(number), one, nodes, depth + 1) for number, one in enumerate(value)]
        return {"name": name, "text": f"[{len(children)}]", "children": children}
    return {"name": name, "text": json.dumps(value, ensure_ascii=False), "children": []}
