"""Hypothesis runs a test hundreds of times in one process: what each run opens, it must close."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


def open_files() -> list[str]:
    """Of logs in temporary folders, there or gone."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(entry.readlink())
            if "/oncelog-" in target:
                found.append(target)
    return found


@pytest.fixture(autouse=True)
def _closes_what_it_opens() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before
