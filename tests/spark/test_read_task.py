"""What a task does when records of its range go while it reads: fail, or go on behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.client import CorruptBatch, IsolationLevel, KafkaError, TimedOut
from oncelog.client.admin import OffsetResult
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.spark import read_task
from oncelog.spark.planning import OffsetRange
from oncelog.spark.source_options import parse_source_options
from oncelog.spark.topic_plan import DataLost
from oncelog.testing import broker
from tests.unit.client.poison import READABLE, make_poisoned_topic

P0 = TopicPartition("a", 0)
GONE = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")


class Topic:
    """The cluster, and its reader: ten offsets at a time. What is below `earliest` goes after the first answer."""

    def __init__(self, earliest: int, error: KafkaError = GONE, exists: bool = True) -> None:
        self.earliest = earliest
        self.error = error
        self.exists = exists
        self.answers = 0

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
        for position in range(start, end, 10):
            if self.answers and not self.earliest <= position < self.earliest + 1000:
                raise self.error
            self.answers += 1
            yield SimpleNamespace(start_offset=position, next_offset=position + 10)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetResult]:
        return dict.fromkeys(wanted, OffsetResult(self.earliest, -1, -1))

    def partitions_of(self, topics: Collection[str]) -> dict[str, list[TopicPartition]]:
        return {"a": [P0]} if self.exists else {}


def begins(monkeypatch: pytest.MonkeyPatch, topic: Topic, wanted: OffsetRange, **options: str) -> list[int]:
    """Where each answer begins that a task takes."""
    monkeypatch.setattr(read_task, "worker_client", lambda _: topic)
    monkeypatch.setattr(read_task, "RangeReader", lambda client, **_: client)
    given = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a", **options}
    parsed = parse_source_options(given, streaming=True)
    return [chunk.start_offset for chunk in read_task._chunks(parsed, wanted)]


@pytest.mark.parametrize(
    ("earliest", "taken"),
    [(40, [0, 40, 50]), (45, [0, 45, 55]), (60, [0]), (200, [0])],
    ids=["some", "some to the middle", "to the end", "beyond the end"],
)
def test_a_task_goes_on_behind_what_went(monkeypatch: pytest.MonkeyPatch, earliest: int, taken: list[int]) -> None:
    wanted = OffsetRange(P0, 0, 60)
    assert begins(monkeypatch, Topic(earliest), wanted, failOnDataLoss="false") == taken
    lost = rf"a-0: offsets 10 to {min(earliest, 60)} went while the batch was running\. Set the option failOnDataLoss"
    with pytest.raises(DataLost, match=lost):
        begins(monkeypatch, Topic(earliest), wanted)


def test_a_task_ends_where_a_log_was_cut_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was created again, say, and is shorter: nothing of the range will come any more."""
    cut = Topic(0)
    cut.answers = 1
    assert begins(monkeypatch, cut, OffsetRange(P0, 2000, 2050), failOnDataLoss="false") == []


@pytest.mark.parametrize("error", [TimedOut("no leader"), KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone")])
def test_a_task_ends_with_its_topic(monkeypatch: pytest.MonkeyPatch, error: KafkaError) -> None:
    wanted = OffsetRange(P0, 0, 60)
    assert begins(monkeypatch, Topic(40, error, exists=False), wanted, failOnDataLoss="false") == [0]
    with pytest.raises(DataLost, match="offsets 10 to 60 went while the batch was running"):
        begins(monkeypatch, Topic(40, error, exists=False), wanted)


@pytest.mark.parametrize("error", [TimedOut("busy"), KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")])
def test_other_failures_are_not_taken_for_loss(monkeypatch: pytest.MonkeyPatch, error: KafkaError) -> None:
    with pytest.raises(type(error), match=str(error)):
        begins(monkeypatch, Topic(40, error), OffsetRange(P0, 0, 60), failOnDataLoss="false")


def test_a_task_reads_what_it_can_and_goes_on_if_told_to() -> None:
    with broker() as process:
        poisoned = make_poisoned_topic(process, "poisoned")
        given = {"kafka.bootstrap.servers": process.bootstrap_servers, "subscribe": "poisoned"}
        wanted = OffsetRange(poisoned, 0, 9)
        with pytest.raises(CorruptBatch, match="topic poisoned, partition 0: offsets 2 to 2 cannot be read"):
            list(read_task.read_range(parse_source_options(given, streaming=True), wanted))
        given["kafka.oncelog.skip.corrupt.batches"] = "true"
        parts = list(read_task.read_range(parse_source_options(given, streaming=True), wanted))
        assert [value for part in parts for value in part.column("value").to_pylist()] == READABLE


def test_how_much_is_fetched_at_a_time_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def reader(client: Any, *, fetch_bytes: int, **_: Any) -> Any:
        asked.append(fetch_bytes)
        return client

    monkeypatch.setattr(read_task, "worker_client", lambda _: Topic(0))
    monkeypatch.setattr(read_task, "RangeReader", reader)
    given = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a"}
    for more in (
        {"kafka.fetch.max.bytes": "70000"},
        {"kafka.fetch.max.bytes": "70000", "kafka.max.partition.fetch.bytes": "50000"},
    ):
        list(read_task._chunks(parse_source_options({**given, **more}, streaming=True), OffsetRange(P0, 0, 10)))
    assert asked == [70_000, 50_000]
