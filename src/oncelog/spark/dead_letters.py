"""Rows that no topic can take, as records of the dead-letter topic: what was to be written, and why it was not.

Headers tell the rest: `oncelog.error`, `oncelog.topic` and `oncelog.partition` (as far as the row had them), and
`oncelog.size_bytes`. What would make the letter itself too large is left out, and `oncelog.left_out` names it; so are
headers without a key, which no record can have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from oncelog.client.columns import HEADERS_TYPE
from oncelog.spark.record_size import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, record_sizes
from oncelog.spark.routing import REASONS, RowProblem, facts_of

if TYPE_CHECKING:
    from oncelog.spark.write_job import TaskOrders

TEXT_LENGTH_MAX = 300
"""The longest header that says what was wrong: names of topics have 249 characters, but rows may hold anything."""
LEFT_OUT = ((), ("headers",), ("value",), ("value", "headers"), ("key", "headers"), ("key", "value", "headers"))
"""What is left out of a letter that is too large, in the order in which it is tried."""


class Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def size_bytes(self) -> int:
        """As a record, at most."""
        headers = sum(HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"") for name, value in self.headers)
        return RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


def dead_letters(rows: pa.RecordBatch, kinds: Iterable[int], orders: TaskOrders) -> pa.RecordBatch:
    """`kinds` are the `RowProblem`s of the rows."""
    sizes = record_sizes(rows)
    topic = orders.dead_letter_topic or ""
    size_max = facts_of(orders, [topic])[topic].record_bytes_max(orders.max_request_size)
    letters = [
        _letter(row, RowProblem(kind), int(size_bytes), orders.topic, size_max)
        for row, kind, size_bytes in zip(rows.to_pylist(), kinds, sizes, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([letter.key for letter in letters], pa.binary()),
            pa.array([letter.value for letter in letters], pa.binary()),
            pa.array([_structs(letter.headers) for letter in letters], HEADERS_TYPE),
        ],
        names=["key", "value", "headers"],
    )


def _letter(row: dict[str, Any], kind: RowProblem, size_bytes: int, topic: str | None, size_max: int) -> Letter:
    about: dict[str, Any] = {
        "oncelog.error": REASONS[kind],
        "oncelog.topic": row.get("topic", topic),
        "oncelog.partition": row.get("partition"),
        "oncelog.size_bytes": size_bytes,
    }
    extra = [(name, str(what)[:TEXT_LENGTH_MAX].encode()) for name, what in about.items() if what is not None]
    named = [header for header in row.get("headers") or [] if header is not None and header["key"] is not None]
    headers = [(header["key"], header["value"]) for header in named]
    for left_out in LEFT_OUT:
        note = [("oncelog.left_out", " ".join(left_out).encode())] if left_out else []
        letter = Letter(
            None if "key" in left_out else row.get("key"),
            None if "value" in left_out else row.get("value"),
            [*([] if "headers" in left_out else headers), *extra, *note],
        )
        if letter.size_bytes <= size_max:
            break
    return letter


def _structs(headers: list[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]
