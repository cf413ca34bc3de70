"""Fixtures for all tests."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from oncelog.client import Admin, ClientConfig, Producer
from tests import second_try
from tests.data import kafka
from tests.descriptors import DescriptorWatch

_numbers = itertools.count()
_descriptors = DescriptorWatch()

# How long an example takes on a busy machine says nothing about what is tested.
settings.register_profile(
    "any-machine",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Run in the background, tests inherit from the shell that Ctrl-C is ignored, and what they start would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    second_try.take_notes(config)


ONE_PROCESS = {"tests/spark", "tests/conformance"}
"""Folders whose tests share a Spark session or running brokers, and so stay in one process."""


class ByFile(LoadScopeScheduling):
    """Shares tests out to processes: the folders above as a whole, others file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        folder = "/".join(file.split("/")[:2])
        return folder if folder in ONE_PROCESS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # the order is ours: see below
    return ByFile(config, log)


def start_rank(nodeid: str) -> int:
    """What cannot be shared out begins first, then what starts processes, and unit tests are last: whichever process is
    done early finds short files to the end. By the number of tests, long files of one test each would come last, and
    a process that has taken three of them works on while the others have nothing left."""
    folder = "/".join(nodeid.split("/")[:2])
    return 0 if folder in ONE_PROCESS else 2 if folder == "tests/unit" else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: start_rank(item.nodeid))
    if os.environ.get("ONCELOG_CONNECTORS") != "all":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="make test-connectors runs it"))


def pytest_runtest_teardown() -> None:
    _descriptors.look()


@pytest.fixture
def name() -> str:
    """A name that no other test of this process uses."""
    return f"name-{next(_numbers)}"


@pytest.fixture
def admin(servers: str) -> Iterator[Admin]:
    """`servers` is a fixture of each folder that has a broker: its address."""
    with Admin(ClientConfig(bootstrap_servers=servers)) as client:
        yield client


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """A new topic of one partition."""
    admin.create_topics([name])
    return name


@pytest.fixture
def transactional(servers: str) -> Iterator[Callable[..., Producer]]:
    """Transactional producers, initialised. What they leave open stays open, however long a test takes."""
    made: list[Producer] = []

    def make(transactional_id: str, **settings: Any) -> Producer:
        properties = {name.replace("_", "."): value for name, value in settings.items()}
        lasting = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": servers, **lasting, **properties})
        made.append(producer)
        producer.init_transactions()
        return producer

    yield make
    for producer in made:
        producer.close(timeout_ms=2_000)


@pytest.fixture
def kafka_data(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a data folder that Apache Kafka wrote ("tv0", "tv1", "tv2", "tv2-killed") into the test's own folder."""
    return lambda name: kafka.unpack(name, tmp_path)
