"""A change of the metadata is applied in slices: what requests find in between, and a broker that stops then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.cluster_metadata import PartitionRecord, RemoveTopicRecord, TopicRecord
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server import membership
from oncelog.server.metadata_changes import MetadataChanges
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess, batch_of

PARTITIONS = 20
NEW_ID = UUID(int=77)


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    return BrokerInProcess(tmp_path / "data", FEW_PARTITIONS)


def between_steps(monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    """What is called whenever others have their turn."""
    original = MetadataChanges.apply

    def apply(self: MetadataChanges, *args: Any) -> Any:
        for step in original(self, *args):
            look()
            yield step

    monkeypatch.setattr(MetadataChanges, "apply", apply)


def write(node: BrokerInProcess, index: int) -> int:
    batch = batch_of([b"v"], timestamp_ms=node.clock.now_ms())
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=index, records=batch)])]
    answer = node.send(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics), 9)
    return int(answer.value.responses[0].partition_responses[0].error_code)


def test_a_topic_that_is_made_again_in_the_same_change(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("t", PARTITIONS)
    for index in range(PARTITIONS):
        assert write(node, index) == 0
    taken: Counter[tuple[UUID | None, int]] = Counter()
    refused: Counter[int] = Counter()

    def look() -> None:
        for index in range(PARTITIONS):
            known = node.broker.metadata.topics.get("t")
            code = write(node, index)
            taken[None if known is None else known.topic_id, index] += code == 0
            refused[code] += 1

    between_steps(monkeypatch, look)
    own = node.broker.own_controller
    assert own is not None
    (sample,) = {each.replicas for each in own.node.machine.view.image.topic("t").partitions.values()}  # type: ignore[union-attr]
    directory = node.broker.log_dir.meta.directory_id
    assert directory is not None
    node.change(
        RemoveTopicRecord(topic_id=node.topic_id("t")),
        TopicRecord(name="t", topic_id=NEW_ID),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=NEW_ID,
                replicas=list(sample),
                isr=list(sample),
                leader=node.broker.node_id,
                directories=[directory],
            )
            for index in range(PARTITIONS)
        ),
    )
    assert refused.keys() == {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert node.topic_id("t") == NEW_ID
    for index in range(PARTITIONS):
        log = node.broker.log_dir.logs[TopicPartition("t", index)]
        assert log.log_end_offset == taken[NEW_ID, index] > 0, "what was written to the new one, and nothing of the old"


def test_a_stop_in_the_middle(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("t", PARTITIONS)
    for index in range(PARTITIONS):
        write(node, index)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == PARTITIONS + 5:
            assert not node.broker.partitions.opened("t", 0)
            assert node.broker.partitions.opened("t", PARTITIONS - 1)
            monkeypatch.setattr(node.clock, "call_later_ms", lambda *_: None)  # the broker has no further turn

    monkeypatch.setattr(membership, "SLICE_MS", 0)
    between_steps(monkeypatch, look)
    node.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 5)
    node.clock.advance_ms(0)
    assert looks == PARTITIONS + 5
    node.broker.stop()
    assert not [path for path in node.folder.glob("t-*") if not path.name.endswith("-delete")]


def test_others_have_their_turn(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "SLICE_MS", 0)
    topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
    made = node.send(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), 7)
    assert not made.done
    assert "t" not in node.broker.metadata.topics
    node.clock.advance_ms(1)
    assert made.done
    assert [write(node, index) for index in range(PARTITIONS)] == [0] * PARTITIONS
