"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import kafka


def pytest_configure() -> None:
    """Run in the background, tests inherit from the shell that Ctrl-C is ignored, and what they start would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def kafka_data(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a data folder that Apache Kafka wrote ("tv0", "tv1", "tv2", "tv2-killed") into the test's own folder."""
    return lambda name: kafka.unpack(name, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark comes first: its callbacks go through select(), which knows no descriptor above 1023."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
