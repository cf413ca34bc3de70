"""`startingOffsets=committed` of a group that stands nowhere is allowed, but not passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import Admin, ClientConfig, TimedOut, TransactionClient
from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.spark import source, topic_plan
from oncelog.spark.source_options import parse_source_options
from oncelog.spark.topic_plan import TopicPlan
from oncelog.testing import BrokerProcess

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Plan:
    def starting_offsets(self) -> dict[TopicPartition, int]:
        return {P0: 0, P1: 0}


@pytest.mark.parametrize(
    ("starting", "known", "warns"),
    [
        ("committed", (), True),
        ("committed", (TopicPartition("others", 0),), True),
        # A partition that appeared since the last commit.
        ("committed", (P0,), False),
        ("earliest", (), False),
    ],
)
def test_a_group_that_has_committed_nothing_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    starting: str,
    known: tuple[TopicPartition, ...],
    warns: bool,
) -> None:
    class Client:
        def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
            return {partition: OffsetAndMetadata(5, "") for partition in known}

    monkeypatch.setattr(source, "worker_client", lambda _: Client())
    options = parse_source_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "orders",
            "startingOffsets": starting,
            "kafka.group.id": "nobody",
        },
        streaming=True,
    )
    plan: Any = Plan()
    with caplog.at_level(logging.WARNING):
        assert source.starting_offsets(plan, options) == {P0: 0, P1: 0}
    assert ("group nobody has committed nothing for orders" in caplog.text) is warns


class LeftOpen:
    """The transaction of a driver that died before its commit, with an offset of partition 0."""

    def __init__(self, config: ClientConfig, topic: str) -> None:
        self.partition = TopicPartition(topic, 0)
        with Admin(config) as admin:
            admin.create_topics([topic])
            admin.alter_group_offsets(topic, {self.partition: 3})
        self.driver = TransactionClient(config)
        self.driver.init(topic)
        self.driver.commit_offsets(topic, {self.partition: 7})
        options = {
            "kafka.bootstrap.servers": config.bootstrap_servers,
            "kafka.default.api.timeout.ms": "500",
            "kafka.group.id": topic,
            "subscribe": topic,
            "startingOffsets": "committed",
        }
        self.plan = TopicPlan(parse_source_options(options, streaming=True))


@pytest.fixture
def left_open(oncelog_broker: BrokerProcess, name: Callable[[str], str]) -> Iterator[LeftOpen]:
    made = LeftOpen(ClientConfig(bootstrap_servers=oncelog_broker.bootstrap_servers), name("left-open"))
    yield made
    made.driver.close()


@pytest.mark.parametrize(("commit", "position"), [(True, 7), (False, 3)])
def test_offsets_that_a_driver_has_left_in_an_open_transaction_are_waited_for(
    left_open: LeftOpen, monkeypatch: pytest.MonkeyPatch, commit: bool, position: int
) -> None:
    """It ends after the client has given up for the first time, when a warning of it is given."""
    monkeypatch.setattr(topic_plan.logger, "warning", lambda *_: left_open.driver.end(commit))
    assert left_open.plan.starting_offsets() == {left_open.partition: position}


def test_offsets_in_an_open_transaction_are_not_waited_for_without_end(
    left_open: LeftOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_plan, "OPEN_OFFSETS_S", 0)
    with pytest.raises(TimedOut, match="UNSTABLE_OFFSET_COMMIT"):
        left_open.plan.starting_offsets()
    left_open.driver.end(False)
