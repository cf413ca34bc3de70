"""Names in SQL."""

from __future__ import annotations


def quoted(*parts: str) -> str:
    """A column, or the parts of a longer name."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def quoted_table(name: str) -> str:
    """`table` or `schema.table`, as settings name it."""
    return quoted(*name.split("."))
