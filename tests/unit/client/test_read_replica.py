"""A consumer that its leader sends to a follower (KIP-392): it goes there, and comes back when that does not work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_fetcher import FOLLOWER_PAUSE_S, ConsumerFetcher
from oncelog.client.consumer_positions import PartitionPosition, Positions
from oncelog.client.errors import ErrorCode
from oncelog.client.routes import Broker, Routes
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

LEADER, FOLLOWER = 1, 2
PARTITION = TopicPartition("t", 0)


class Reader:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.routes = Routes()
        partition = MetadataResponsePartition(partition_index=0, leader_id=LEADER, replica_nodes=[LEADER, FOLLOWER])
        brokers = [MetadataResponseBroker(node_id=node, host="h", port=node) for node in (LEADER, FOLLOWER)]
        topic = MetadataResponseTopic(name="t", partitions=[partition])
        self.routes.learn(MetadataResponse(brokers=brokers, topics=[topic]), 0.0)
        cluster: Any = SimpleNamespace(routes=self.routes, network=SimpleNamespace(now_s=lambda: self.now_s))
        self.started: list[tuple[Any, ...]] = []
        tasks: Any = SimpleNamespace(cluster=cluster, start=lambda key, *_: self.started.append(key))
        config = ConsumerConfig.parse({"bootstrap.servers": "h:1", "client.rack": "near"})
        self.max_age_s = config.client.metadata_max_age_ms / 1000
        lookup: Any = SimpleNamespace(reset=None)
        self.fetcher = ConsumerFetcher(config, Positions(), tasks, lookup, cast(Any, self.started.append))
        self.entry = PartitionPosition(PARTITION)
        self.entry.seek(5)

    @property
    def source(self) -> int | None:
        return self.fetcher._source_of(self.entry)

    def answer(self, node_id: int, **fields: Any) -> None:
        self.fetcher._take(self.entry, 5, PartitionData(**{"records": b"", **fields}), node_id)


@pytest.fixture
def reader() -> Reader:
    made = Reader()
    made.answer(LEADER, preferred_read_replica=FOLLOWER)
    return made


def test_it_goes_where_the_leader_sends_it_and_asks_again_after_a_while(reader: Reader) -> None:
    assert reader.source == FOLLOWER
    reader.now_s = reader.max_age_s
    assert reader.source == LEADER


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_what_a_follower_refuses_the_leader_is_asked(reader: Reader, code: ErrorCode) -> None:
    reader.answer(FOLLOWER, error_code=code)
    assert reader.source == LEADER
    assert reader.started == [], "it may only be behind: nothing is reset"


def test_a_follower_that_is_gone_is_left(reader: Reader) -> None:
    reader.routes.brokers = {LEADER: Broker(LEADER, "h", 1)}
    assert reader.source == LEADER


def test_the_leaders_refusal_counts(reader: Reader) -> None:
    reader.answer(LEADER, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert reader.started == [("reset", PARTITION)]


def test_the_rack_is_in_every_fetch(reader: Reader) -> None:
    assert reader.fetcher._settings.rack == "near"


def test_after_a_follower_has_failed_the_leader_is_not_asked_for_another_for_a_while(reader: Reader) -> None:
    reader.answer(FOLLOWER, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert reader.source == LEADER
    assert reader.fetcher._settings_for([reader.entry]).rack == "", "it would be sent back at once, and so on for ever"
    reader.now_s = FOLLOWER_PAUSE_S
    assert reader.fetcher._settings_for([reader.entry]).rack == "near"


def test_a_follower_is_told_the_rack_whatever_another_one_did(reader: Reader) -> None:
    other = PartitionPosition(TopicPartition("t", 1))
    other.leader_until_s = 1.0
    assert reader.fetcher._settings_for([reader.entry, other]).rack == "near"
