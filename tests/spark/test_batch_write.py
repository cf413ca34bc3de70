"""A plain write that takes several attempts: what is committed tells the next one of the last. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import oncelog.spark
from oncelog.client.config import ClientConfig
from oncelog.client.errors import TimedOut
from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.core.sink_note import Note
from oncelog.spark import batch_write
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.write_job import Written

P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)


class Coordinator:
    """Both an `Identity` and its client: a transaction that ends, and then says so or not."""

    def __init__(self) -> None:
        self.client = self
        self.transaction_version = 2
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.commits = 0
        self.loses_answers = False
        self._pending: dict[TopicPartition, OffsetAndMetadata] = {}

    def fetch_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return dict(self.committed)

    def commit_offsets(self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self._pending = offsets

    def commit(self) -> None:
        self.committed |= self._pending
        self.commits += 1
        if self.loses_answers:
            raise TimedOut("the answer was lost")

    def abandon(self) -> None:
        self._pending = {}


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """Each job writes a row more than the last, to the second partition."""
    done: list[Written] = []

    def run(*_: Any, **__: Any) -> Written:
        done.append(Written(len(done) + 1, 10, (P1,)))
        return done[-1]

    monkeypatch.setattr(batch_write, "run_write_job", run)
    return done


def a_call(run_id: str | None = None, topic: str | None = "out") -> Any:
    options = SinkOptions(
        client=ClientConfig(bootstrap_servers="127.0.0.1:1"), transactional_id="t", group_id="t", topic=topic
    )
    return batch_write._Call(SimpleNamespace(), options, run_id)  # type: ignore[arg-type]


@pytest.mark.parametrize(("topic", "place"), [("out", P0), (None, P1)])
def test_a_call_without_a_run_id_does_not_repeat_what_it_committed(
    coordinator: Coordinator, topic: str | None, place: TopicPartition
) -> None:
    call = a_call(topic=topic)
    coordinator.loses_answers = True
    with pytest.raises(TimedOut):
        call.attempt(coordinator)
    assert call.attempt(coordinator) == Written(1, 10, (P1,))
    assert coordinator.commits == 1
    assert coordinator.committed.keys() == {place}


def test_a_second_call_without_a_run_id_writes_again(coordinator: Coordinator) -> None:
    for _ in range(2):
        assert a_call().attempt(coordinator) is not None
    assert coordinator.commits == 2


def test_a_run_is_written_once_by_however_many_calls(coordinator: Coordinator, jobs: list[Written]) -> None:
    assert a_call("monday").attempt(coordinator) is not None
    assert a_call("monday").attempt(coordinator) is None
    assert a_call("tuesday").attempt(coordinator) is not None
    assert len(jobs) == 2


def test_a_call_without_a_run_id_does_not_forget_the_last_run(coordinator: Coordinator) -> None:
    a_call("monday").attempt(coordinator)
    a_call().attempt(coordinator)
    assert a_call("monday").attempt(coordinator) is None


def test_run_ids_of_earlier_versions_are_understood(coordinator: Coordinator) -> None:
    coordinator.committed[P0] = OffsetAndMetadata(0, Note("monday", 0).to_text())
    assert a_call("monday").attempt(coordinator) is None
    assert a_call("tuesday").attempt(coordinator) is not None


@pytest.mark.parametrize(("run_id", "message"), [("", "run_id is empty"), ("x" * 5000, "run_id is too long")])
def test_a_run_id_that_cannot_be_kept_is_refused(run_id: str, message: str) -> None:
    frame: Any = SimpleNamespace(isStreaming=False)
    with pytest.raises(oncelog.spark.OptionError, match=message):
        oncelog.spark.write_batch(
            frame, bootstrap_servers="127.0.0.1:1", transactional_id="t", topic="out", run_id=run_id
        )
