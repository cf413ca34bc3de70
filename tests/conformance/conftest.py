"""Fixtures of the conformance tests: every test that takes `broker` runs on Oncelog and on Apache Kafka."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance import brokers
from tests.conformance.brokers import Broker

_names = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.conformance)


def require(kind: str) -> None:
    """Skip when this broker cannot run here, or fail where it must be able to (in CI)."""
    reason = brokers.unavailable(kind)
    if reason is None:
        return
    if os.environ.get("CI") == "true" or os.environ.get("ONCELOG_REQUIRE_KAFKA") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _stop_brokers() -> Iterator[None]:
    yield
    brokers.stop_all()


@pytest.fixture(params=brokers.KINDS)
def broker_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    require(kind)
    return kind


@pytest.fixture
def transaction_version(request: pytest.FixtureRequest) -> int:
    """The broker's finalised transaction.version: 2 unless the test asks for others (`indirect` parametrisation)."""
    return int(getattr(request, "param", 2))


@pytest.fixture
def broker(broker_kind: str, transaction_version: int) -> Broker:
    """A running broker, shared with other tests: use names from `unique` and leave it running."""
    return brokers.get(broker_kind, transaction_version)


@pytest.fixture
def new_broker(broker_kind: str, transaction_version: int, tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Makes and starts brokers of the test's own, which it may stop, kill and start again."""
    made: list[brokers.KafkaBroker | brokers.OncelogBroker] = []

    def start(**settings: str) -> Broker:
        folder = tmp_path / f"broker-{len(made)}"
        keys = {key.replace("_", "."): value for key, value in settings.items()}
        made.append(brokers.new(broker_kind, folder, transaction_version=transaction_version, settings=keys))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def java() -> None:
    """For tests that drive Java clients, on whichever broker: they need Java, as Apache Kafka does."""
    require("kafka")


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names of topics, groups and ids that no other test uses."""
    return lambda name: f"{name}-{os.getpid()}-{next(_names)}"
