"""Columns need packages that not every installation has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PACKAGES: Final = ("numpy", "pyarrow")


@contextmanager
def needs_columns() -> Iterator[None]:
    """Around imports: one that fails for the want of these packages says how to get them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise ModuleNotFoundError(
            f"columns need {' and '.join(PACKAGES)}: pip install 'oncelog[client]'", name=error.name
        ) from error
