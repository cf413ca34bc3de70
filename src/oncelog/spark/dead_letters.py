"""Rows that no topic can take, as records of the dead-letter topic: what was to be written, and why it was not.

Headers tell the rest: `oncelog.error`, `oncelog.topic` and `oncelog.partition` (as far as the row had them), and
`oncelog.size_bytes`. A value or key too large for any topic is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelog.spark.routing import REASONS, Poison

if TYPE_CHECKING:
    from oncelog.spark.write_job import TaskOrders

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def dead_letters(rows: pa.RecordBatch, kinds: Iterable[int], orders: TaskOrders) -> pa.RecordBatch:
    """`kinds` are the Poisons of the rows."""
    letters = [_letter(row, Poison(kind), orders) for row, kind in zip(rows.to_pylist(), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([letter["key"] for letter in letters], pa.binary()),
            pa.array([letter["value"] for letter in letters], pa.binary()),
            pa.array([letter["headers"] for letter in letters], HEADERS_TYPE),
        ],
        names=["key", "value", "headers"],
    )


def _letter(row: dict[str, Any], kind: Poison, orders: TaskOrders) -> dict[str, Any]:
    key, value = row.get("key"), row.get("value")
    about: dict[str, Any] = {
        "oncelog.error": REASONS[kind],
        "oncelog.topic": row.get("topic", orders.topic),
        "oncelog.partition": row.get("partition"),
        "oncelog.size_bytes": len(key or b"") + len(value or b""),
    }
    extra = [{"key": name, "value": str(what).encode()} for name, what in about.items() if what is not None]
    if about["oncelog.size_bytes"] > orders.max_request_size:
        value = None
        key = key if key is not None and len(key) < orders.max_request_size // 2 else None
    return {"key": key, "value": value, "headers": [*(row.get("headers") or []), *extra]}
