"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import kafka


@pytest.fixture
def kafka_data(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a data folder that Apache Kafka wrote ("tv0", "tv1", "tv2", "tv2-killed") into the test's own folder."""
    return lambda name: kafka.unpack(name, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark comes first: its callbacks go through select(), which knows no descriptor above 1023."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
