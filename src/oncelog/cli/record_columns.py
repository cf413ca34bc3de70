"""Lines to Arrow columns and back, for `produce` and `consume` at full speed. Needs pyarrow and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.cli.record_input import Block, InvalidLine, LineFormat


def rows_of(block: Block, style: LineFormat) -> tuple[Any, Any]:
    """Keys (or None) and values of the lines of a block."""
    lines = _lines(block.data)
    if style.key_delimiter is None:
        return None, _without(lines, style.null_text)
    parts = pc.split_pattern(lines, pattern=style.key_delimiter, max_splits=1)
    alone = np.flatnonzero(np.asarray(pc.list_value_length(parts)) < 2)
    if len(alone):
        number = int(alone[0])
        raise InvalidLine(
            block.first_line + number,
            f"there is no {style.key_delimiter.decode(errors='replace')!r} between a key and a value: "
            f"{lines[number].as_py()[:60].decode(errors='replace')!r}",
            block.source,
        )
    return (
        _without(pc.list_element(parts, 0), style.null_text),
        _without(pc.list_element(parts, 1), style.null_text),
    )


def _lines(data: bytes) -> pa.Array:
    """One element per line, without the newline: all newlines are squeezed out and only the offsets remain."""
    content = np.frombuffer(data, np.uint8)
    is_end = content == ord("\n")
    ends = np.flatnonzero(is_end)
    bounds = np.zeros(len(ends) + 1, np.int32)
    bounds[1:] = ends - np.arange(len(ends))
    squeezed = content[~is_end]
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(squeezed)])


def _without(column: Any, null_text: bytes | None) -> Any:
    if null_text is None:
        return column
    return pc.if_else(pc.equal(column, null_text), pa.scalar(None, pa.binary()), column)


def joined(columns: list[Any], separators: list[bytes]) -> memoryview:
    """The rows as one piece of text: each column followed by its separator. Null is empty."""
    parts: list[Any] = []
    for column, separator in zip(columns, separators, strict=True):
        parts += [pc.fill_null(column, b""), pa.scalar(separator, pa.binary())]
    text = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    bounds = np.frombuffer(text.buffers()[1], np.int32, count=len(text) + 1, offset=4 * text.offset)
    return memoryview(text.buffers()[2])[int(bounds[0]) : int(bounds[-1])]
