"""Where a consumer goes on in a partition, on a network that a script answers for."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.admin_topics import TopicAdmin
from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import Positions
from oncelog.client.errors import KafkaError
from oncelog.client.offset_lookup import OffsetLookup
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from oncelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.unit.client.scripted_network import CONFIG, ScriptedNetwork, run

PLACE = TopicPartition("orders", 0)
END = 42


class Asked:
    """A lookup over one partition, and what its positions are."""

    def __init__(self, reset: str, meanwhile: int | None = None) -> None:
        self.positions = Positions()
        self.positions.add([PLACE])
        self.entry = self.positions[PLACE]
        self._meanwhile = meanwhile
        settings = {"bootstrap.servers": "boot:1", "auto.offset.reset": reset}
        self.network = ScriptedNetwork(self._answer)
        cluster = Cluster(CONFIG, self.network)
        self.lookup = OffsetLookup(TopicAdmin(cluster), ConsumerConfig.parse(settings), self.positions)

    def _answer(self, peer: str, request: Any) -> Any:
        if type(request).__name__ == "MetadataRequest":
            partition = MetadataResponsePartition(partition_index=0, leader_id=1)
            topic = MetadataResponseTopic(name=PLACE.topic, partitions=[partition])
            return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="one", port=1)], topics=[topic])
        if self._meanwhile is not None:
            self.entry.seek(self._meanwhile)
        found = ListOffsetsPartitionResponse(partition_index=0, offset=END)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=PLACE.topic, partitions=[found])])


def test_a_partition_without_a_position_gets_that_of_the_policy() -> None:
    asked = Asked("latest")
    run(asked.lookup.find(asked.positions.without_position()))
    assert asked.entry.position == END


def test_a_seek_of_the_application_wins_over_the_policy() -> None:
    asked = Asked("latest", meanwhile=7)
    run(asked.lookup.find(asked.positions.without_position()))
    assert asked.entry.position == 7


def test_who_began_before_begins_there_again() -> None:
    asked = Asked("latest")
    asked.entry.seek(5)
    asked.entry.unset()
    run(asked.lookup.find(asked.positions.without_position()))
    assert asked.entry.position == 5
    assert asked.network.count("ListOffsetsRequest") == 0


def test_an_offset_that_is_gone_is_replaced_by_that_of_the_policy_if_there_is_one() -> None:
    asked = Asked("latest")
    asked.entry.seek(3)
    run(asked.lookup.reset(asked.entry, asked.entry.version, 3))
    assert asked.entry.fetch_position == END
    strict = Asked("none")
    strict.entry.seek(3)
    with pytest.raises(KafkaError, match=r"orders-0 has no offset 3 any more.*seek to where to go on"):
        run(strict.lookup.reset(strict.entry, strict.entry.version, 3))
    assert strict.entry.fetch_position == 3


def test_a_seek_of_the_application_wins_over_a_reset() -> None:
    asked = Asked("latest", meanwhile=7)
    asked.entry.seek(3)
    run(asked.lookup.reset(asked.entry, asked.entry.version, 3))
    assert asked.entry.position == 7


def test_without_a_policy_a_partition_without_a_committed_offset_is_an_error() -> None:
    asked = Asked("none")
    with pytest.raises(KafkaError, match="no committed offset for orders-0"):
        run(asked.lookup.find(asked.positions.without_position()))
