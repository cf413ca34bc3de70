"""The rows of a page as a file: JSON lines, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

FORMATS: Final = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a text begins with that a spreadsheet would run; the last ones are the wide forms of the first."""


def export(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    return _csv(rows) if kind == "csv" else "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    # Some spreadsheets take a semicolon for the end of a cell, unless the cell is quoted.
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value
