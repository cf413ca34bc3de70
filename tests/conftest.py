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
