"""Hypothesis runs a test hundreds of times in one process: what each run opens, it must close."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.descriptors import open_files


def files_of_logs() -> list[str]:
    """In temporary folders, there or gone."""
    return [file for file in open_files() if "/oncelog-" in file]


@pytest.fixture(autouse=True)
def _closes_what_it_opens() -> Iterator[None]:
    gc.collect()  # what other tests have left
    before = Counter(files_of_logs())
    yield
    assert not Counter(files_of_logs()) - before
