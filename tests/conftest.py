"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import open_files
from tests.data import kafka


def pytest_configure() -> None:
    """Run in the background, tests inherit from the shell that Ctrl-C is ignored, and what they start would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


ONE_PROCESS = {"spark", "conformance"}
"""Folders whose tests share a Spark session or running brokers, and so stay in one process."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other tests are shared out by file."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        group = path.parts[0] if path.parts[0] in ONE_PROCESS else str(path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _descriptors_of_crashed_logs_are_given_back() -> Iterator[None]:
    before = open_files.last_number()
    yield
    open_files.close_opened_since(before)


@pytest.fixture
def kafka_data(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a data folder that Apache Kafka wrote ("tv0", "tv1", "tv2", "tv2-killed") into the test's own folder."""
    return lambda name: kafka.unpack(name, tmp_path)
