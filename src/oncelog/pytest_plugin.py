"""The pytest plugin. Brokers are started when a test first asks for one; under xdist every process has its own.

`oncelog_broker` is shared by the whole run, `fresh_oncelog_broker` is empty at the start of each test, and
`oncelog_topic` is a new topic on the shared one. Settings come from `oncelog_settings` and `fresh_oncelog_settings`,
which a conftest.py or a module defines anew.

pytest loads this file in every run of an environment that has Oncelog: it imports the rest when a test uses it. As soon
as it is known which tests are run, the process that brokers come from is started if one of them needs it, so that its
imports overlap with the tests before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from oncelog.testing.broker import BrokerProcess

_OF_BROKERS: Final = frozenset(("oncelog_broker", "_fresh_oncelog_brokers"))
"""What all fixtures with a broker are made of."""


def pytest_collection_finish(session: pytest.Session) -> None:
    needs_broker = any(_OF_BROKERS.intersection(getattr(item, "fixturenames", ())) for item in session.items)
    if needs_broker and not session.config.option.collectonly:
        from oncelog.testing.launcher import launcher

        launcher.warm_up()


@pytest.fixture(scope="session")
def oncelog_settings() -> Mapping[str, object]:
    """Settings of `oncelog_broker`, under Kafka's names."""
    return {}


@pytest.fixture(scope="session")
def oncelog_broker(oncelog_settings: Mapping[str, object]) -> Iterator[BrokerProcess]:
    """A Kafka-compatible broker at `oncelog_broker.bootstrap_servers`, the same for all tests."""
    from oncelog.testing.broker import broker

    with broker(oncelog_settings) as process:
        yield process


@pytest.fixture
def oncelog_topic(oncelog_broker: BrokerProcess) -> str:
    """The name of a new topic of one partition on `oncelog_broker`."""
    return oncelog_broker.create_topic()


@pytest.fixture
def fresh_oncelog_settings() -> Mapping[str, object]:
    """Settings of `fresh_oncelog_broker`. Tests with the same settings share a process."""
    return {}


class _FreshBrokers:
    """One process at a time: reset between tests, replaced when a test has ended it or wants other settings."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._process: BrokerProcess | None = None
        self._settings: Mapping[str, object] = {}

    def take(self, settings: Mapping[str, object]) -> BrokerProcess:
        if self._process is not None and self._process.running and settings == self._settings:
            self._process.resume()
            self._process.reset()
            return self._process
        from oncelog.testing.broker import broker

        self.close()
        self._settings = dict(settings)
        self._process = self._stack.enter_context(broker(settings))
        return self._process

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def _fresh_oncelog_brokers() -> Iterator[_FreshBrokers]:
    brokers = _FreshBrokers()
    yield brokers
    brokers.close()


@pytest.fixture
def fresh_oncelog_broker(
    _fresh_oncelog_brokers: _FreshBrokers, fresh_oncelog_settings: Mapping[str, object]
) -> BrokerProcess:
    """A broker without topics, groups and transactions, which the test may also kill or break."""
    return _fresh_oncelog_brokers.take(fresh_oncelog_settings)
