"""Changes of the metadata while the disk takes its time: the loop goes on, and nobody is answered too early."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.storage.flush_work import FlushWork
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import HeldWorker, hold_metadata, hold_worker


class Change:
    """A request with an answer that is a list, and the only error code in it."""

    def __init__(self, node: BrokerInProcess, request: Any, version: int, entries: str) -> None:
        self._answer: Promise[Any] = node.send(request, version)
        self._entries = entries

    @property
    def is_answered(self) -> bool:
        return self._answer.done

    def code_when_answered(self, node: BrokerInProcess) -> ErrorCode:
        node.until(self._answer)
        return self.code

    @property
    def code(self) -> ErrorCode:
        (entry,) = getattr(self._answer.value, self._entries)
        return ErrorCode(entry.error_code)


def fail_fsyncs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: FlushWork) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FlushWork, "run", broken)


def creation(node: BrokerInProcess, name: str) -> Change:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return Change(node, CreateTopicsRequest(topics=[topic]), 7, "topics")


def growth(node: BrokerInProcess, name: str, count: int) -> Change:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return Change(node, CreatePartitionsRequest(topics=[topic]), 3, "results")


def setting(node: BrokerInProcess, name: str, value: str) -> Change:
    config = AlterableConfig(name="retention.ms", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
    return Change(node, IncrementalAlterConfigsRequest(resources=[resource]), 1, "responses")


def deletion(node: BrokerInProcess, name: str) -> Change:
    return Change(node, DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), 6, "responses")


def auto_creation(node: BrokerInProcess, name: str) -> Change:
    return Change(node, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12, "topics")


def coordinator(node: BrokerInProcess, group_id: str) -> Change:
    return Change(node, FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4, "coordinators")


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    node = BrokerInProcess(tmp_path / "data")
    node.create("there")
    return node


@pytest.fixture
def worker(node: BrokerInProcess) -> HeldWorker:
    worker = hold_worker(node)
    hold_metadata(node, worker)
    return worker


def test_no_change_is_answered_or_seen_before_it_is_on_disk(node: BrokerInProcess, worker: HeldWorker) -> None:
    changes = [
        creation(node, "new"),
        growth(node, "there", 3),
        auto_creation(node, "asked-for"),
        coordinator(node, "group"),
    ]
    node.clock.advance_ms(0)
    assert not any(change.is_answered for change in changes)
    assert list(node.broker.metadata.topics) == ["there"]
    assert node.produce("there", [b"meanwhile"]).error_code == 0
    worker.work()
    assert not any(change.is_answered for change in changes)
    worker.finish(node.clock)
    assert [change.code for change in changes] == [ErrorCode.NONE] * 4
    assert node.broker.metadata.topics["there"].partition_count == 3
    assert {"new", "asked-for", "__consumer_offsets"} < node.broker.metadata.topics.keys()


def test_changes_that_wait_for_the_disk_share_one_fsync(
    node: BrokerInProcess, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsyncs: list[FlushWork] = []
    run = FlushWork.run
    monkeypatch.setattr(FlushWork, "run", lambda work: (fsyncs.append(work), run(work))[1])
    changes = [creation(node, "first")]
    node.clock.advance_ms(0)
    changes += [creation(node, f"topic-{n}") for n in range(49)]
    worker.finish(node.clock)
    assert [change.code for change in changes] == [ErrorCode.NONE] * 50
    assert len(fsyncs) == 2, "the first goes alone; those that came meanwhile share one"
    node.restart(clean=False)
    assert len(node.broker.metadata.topics) == 51


def test_a_change_is_decided_by_what_those_before_it_have_done(node: BrokerInProcess, worker: HeldWorker) -> None:
    changes = [
        creation(node, "a.b"),
        creation(node, "a.b"),
        creation(node, "a_b"),
        setting(node, "a.b", "1000"),
        deletion(node, "there"),
        growth(node, "there", 5),
        creation(node, "there"),
    ]
    worker.finish(node.clock)
    assert [change.code.name for change in changes] == [
        "NONE", "TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_EXCEPTION", "NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION", "NONE",
    ]  # fmt: skip
    assert node.broker.metadata.topics["a.b"].configs == {"retention.ms": "1000"}
    node.restart(clean=False)
    assert node.broker.metadata.topics["a.b"].configs == {"retention.ms": "1000"}
    assert node.broker.metadata.topics["there"].partition_count == 1


def test_an_fsync_that_fails_leaves_all_that_shared_it_in_doubt_and_ends_the_broker(
    node: BrokerInProcess, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = creation(node, "first")
    node.clock.advance_ms(0)
    together = [creation(node, "one"), growth(node, "first", 2)]
    worker.finish_one()
    fail_fsyncs(monkeypatch)
    node.clock.advance_ms(0)
    assert first.code is ErrorCode.NONE
    worker.finish(node.clock)
    assert [change.code for change in together] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert list(node.broker.metadata.topics) == ["there", "first"]
    assert node.broker.membership is not None
    assert "start it again" in (node.broker.membership.ended.value or ""), "what is on disk is not known any more"
    monkeypatch.undo()
    node.restart(clean=False)
    assert creation(node, "two").code_when_answered(node) is ErrorCode.NONE
    assert {"there", "first", "two"} <= node.broker.metadata.topics.keys() <= {"there", "first", "one", "two"}


def test_the_folders_of_a_deleted_topic_are_renamed_by_the_worker_with_one_fsync(
    node: BrokerInProcess, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [growth(node, "there", 100)]
    worker.finish(node.clock)
    for partition in range(100):
        node.produce("there", [b"x"], partition=partition)
    changes.append(deletion(node, "there"))
    fsyncs: list[int] = []
    real_fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (fsyncs.append(fd), real_fsync(fd))[1])
    node.clock.advance_ms(0)
    worker.finish_one()
    node.clock.advance_ms(0)
    assert "there" not in node.broker.metadata.topics
    assert (node.folder / "there-0").exists(), "nothing is renamed on the loop"
    assert not changes[1].is_answered
    worker.finish_one()
    assert not list(node.folder.glob("there-*[0-9]"))
    assert len(fsyncs) == 1, "for all folders"
    assert not changes[1].is_answered, "a checkpoint is written without them first"
    worker.finish(node.clock)
    assert changes[1].code is ErrorCode.NONE
    changes.append(creation(node, "there"))
    worker.finish(node.clock)
    assert changes[2].code is ErrorCode.NONE
    assert node.produce("there", [b"y"]).base_offset == 0


def test_producer_ids_wait_for_their_block(node: BrokerInProcess, worker: HeldWorker) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers = [node.send(request, 4) for _ in range(3)]
    transactional = node.send(InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000), 4)
    assert not any(answer.done for answer in answers)
    worker.finish(node.clock)
    ids = [answer.value.producer_id for answer in (*answers, transactional)]
    assert len(set(ids)) == 4
    assert min(ids) >= 0
    node.restart(clean=False)
    assert node.call(request, 4).producer_id not in ids


def test_a_block_of_producer_ids_that_cannot_be_written_is_an_error_for_those_who_wait(
    node: BrokerInProcess, worker: HeldWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = node.send(request, 4)
    fail_fsyncs(monkeypatch)
    worker.finish(node.clock)
    assert answer.value.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    monkeypatch.undo()
    node.restart(clean=False)
    assert node.call(request, 4).error_code == 0
