"""Records to the standard output, in the form that `oncelog consume` was asked for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from oncelog.cli import progress, record_output
from oncelog.cli.content_types import AS_THEY_ARE, ContentTypes

if TYPE_CHECKING:
    from oncelog.client.fetcher import FetchedChunk


class Printer:
    """Writes records to the standard output, up to a number of them."""

    def __init__(self, style: str, delimiter: bytes, output: str, count: int | None, types: ContentTypes) -> None:
        if style == "json":
            style, output = "value", "json"
        text = record_output.template(style)
        self._format: record_output.Format = (
            record_output.json_format(types) if output == "json" else record_output.text_format(text, delimiter, types)
        )
        self._delimiter = delimiter
        # These two are common, and can be written column by column.
        self._columns = {"{value}": ["value"], "{key}\t{value}": ["key", "value"]}.get(text)
        if output == "json" or types != AS_THEY_ARE or importlib.util.find_spec("pyarrow") is None:
            self._columns = None
        self._left = count
        self.records = 0

    @property
    def is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def write_chunk(self, chunk: FetchedChunk) -> None:
        if self._columns is not None and self._left is None:
            self._write_columns(chunk)
            return
        from oncelog.client.consumer_records import iter_records

        self.write_records(iter_records(chunk))

    def write_records(self, records: Iterable[Any]) -> int:
        """Returns how many were written."""
        if self._left is not None:
            records = islice(records, max(self._left, 0))
        lines: list[bytes] = []
        try:
            lines.extend(map(self._format, records))
        finally:
            # Also what comes before a record that cannot be read.
            self._write(b"".join(lines))
            self.records += len(lines)
            if self._left is not None:
                self._left -= len(lines)
        return len(lines)

    def _write_columns(self, chunk: FetchedChunk) -> None:
        from oncelog.cli.record_columns import joined
        from oncelog.client.columns import arrow_batches

        if self._columns is None:
            return
        separators = [b"\t"] * (len(self._columns) - 1) + [self._delimiter]
        for table in arrow_batches(chunk, headers=False):
            if table.num_rows:
                self._write(joined([table.column(name) for name in self._columns], separators))
                self.records += table.num_rows

    def _write(self, data: bytes | memoryview) -> None:
        if sys.stdout.isatty():
            # The records show that it goes on, and may end in the middle of a line.
            progress.turn_off()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        sys.stdout.buffer.flush()
