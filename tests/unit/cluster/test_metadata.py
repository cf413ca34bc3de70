from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster import metadata as metadata_module
from oncelog.cluster.journal import Journal, JournalEntry
from oncelog.cluster.metadata import MetadataStore
from oncelog.cluster.metadata_entries import (
    Topic,
    broker_config_entry,
    delete_entry,
    partitions_entry,
    topic_config_entry,
    topic_entry,
)
from oncelog.cluster.producer_ids import PRODUCER_ID_BLOCK, JournalledProducerIds
from oncelog.core.ids import NodeId
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker

_ID = uuid.UUID(int=7)


def epoch_of(store: MetadataStore, topic: Topic) -> int:
    return store.partition_state(topic, 0).leader_epoch


def _open(folder: Path) -> MetadataStore:
    store = MetadataStore(folder, NodeId(1), InlineWorker())
    store.open()
    if store.is_new:
        store.finish_adoption()
    return store


def _propose(store: MetadataStore, subject: str, decide: Callable[[], JournalEntry]) -> None:
    assert store.propose(subject, decide).value is None


def _create(store: MetadataStore, name: str, count: int, configs: dict[str, str], topic_id: uuid.UUID) -> Topic:
    _propose(store, name, lambda: topic_entry(Topic(name, topic_id, count, configs, store.incarnation)))
    return store.topics[name]


def _configure(store: MetadataStore, configs: dict[str, str]) -> None:
    _propose(store, "orders", lambda: topic_config_entry("orders", configs))


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    store = _open(tmp_path)
    _create(store, "orders", 3, {"retention.ms": "5"}, _ID)
    _create(store, "gone", 1, {}, uuid.UUID(int=8))
    _propose(store, "gone", lambda: delete_entry(store.topics["gone"]))
    _propose(store, "orders", lambda: partitions_entry("orders", 5))
    _configure(store, {"retention.ms": "6"})
    _propose(store, "", lambda: broker_config_entry("", {"num.partitions": "4"}))
    store.close()
    again = _open(tmp_path)
    assert list(again.topics) == ["orders"]
    topic = again.topics["orders"]
    assert (topic.topic_id, topic.partition_count, topic.configs) == (_ID, 5, {"retention.ms": "6"})
    assert again.topics_by_id == {_ID: topic}
    assert again.broker_configs == {"": {"num.partitions": "4"}}


def test_producer_ids_are_never_handed_out_twice_even_after_a_crash(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(4):
        store = _open(tmp_path)
        ids = JournalledProducerIds(store)
        seen += [ids.take() for _ in range(PRODUCER_ID_BLOCK // 2 + 1)]
        # No clean stop: whatever was not journalled is lost with the object.
        store._journal.close()
    assert len(set(seen)) == len(seen)


def test_leader_epochs_count_the_starts_since_the_topic_was_made(tmp_path: Path) -> None:
    store = _open(tmp_path)
    old = _create(store, "old", 1, {}, _ID)
    assert epoch_of(store, old) == 0
    store.close()
    store = _open(tmp_path)
    young = _create(store, "young", 1, {}, uuid.UUID(int=9))
    assert epoch_of(store, store.topics["old"]) == 1
    assert epoch_of(store, young) == 0
    store.close()
    store = _open(tmp_path)
    assert [epoch_of(store, store.topics[name]) for name in ("old", "young")] == [2, 1]


def test_an_adopted_topic_goes_on_above_the_last_epoch_of_its_log(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    store.open()
    assert store.is_new
    topic = store.adopt_topic("orders", 2, _ID, leader_epoch=4)
    empty = store.adopt_topic("empty", 1, uuid.UUID(int=8), leader_epoch=-1)
    assert [epoch_of(store, topic), epoch_of(store, empty)] == [5, 0]
    store.finish_adoption()
    store.close()
    again = _open(tmp_path)
    assert [epoch_of(again, again.topics[name]) for name in ("orders", "empty")] == [6, 1]


def test_a_first_start_that_is_interrupted_is_followed_by_a_first_start(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    store.open()
    store.adopt_topic("orders", 2, _ID, leader_epoch=4)
    store.skip_producer_ids_above(5000)
    store.close()
    again = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    again.open()
    assert again.is_new
    assert not again.topics
    topic = again.adopt_topic("orders", 2, _ID, leader_epoch=4)
    assert epoch_of(again, topic) == 5


def test_a_journal_that_has_nothing_but_starts_is_not_new(tmp_path: Path) -> None:
    """Earlier versions began with this line and went on with one per topic."""
    journal = Journal(tmp_path / metadata_module.JOURNAL_FILE)
    journal.open()
    journal.append({"kind": "start", "incarnation": 0})
    journal.close()
    store = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    store.open()
    assert not store.is_new
    assert store.incarnation == 1


def test_the_journal_is_rewritten_before_it_grows_without_end(tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.setattr(metadata_module, "_REWRITE_CHANGES_MIN", 20)  # type: ignore[attr-defined]
    store = _open(tmp_path)
    _create(store, "orders", 1, {}, _ID)
    ids = JournalledProducerIds(store)
    for n in range(500):
        _configure(store, {"retention.ms": str(n)})
        ids.take()
    store.close()
    path = tmp_path / metadata_module.JOURNAL_FILE
    assert len(path.read_bytes().splitlines()) < 60
    assert _open(tmp_path).topics["orders"].configs == {"retention.ms": "499"}


class BusyWorker:
    """The first job takes until `finish`: what is proposed meanwhile is written together."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], None]] = []

    def run(self, job: Callable[[], Any]) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        self._jobs.append(lambda: promise.resolve(InlineWorker().run(job).value))
        return promise

    def finish(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()


def test_a_journal_of_few_long_lines_is_rewritten_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "_REWRITE_CHANGES_MIN", 20)
    worker = BusyWorker()
    store = MetadataStore(tmp_path, NodeId(1), worker)
    store.open()
    store.finish_adoption()
    for n in range(40):
        for node in map(str, range(25)):
            store.propose(node, lambda node=node, n=n: broker_config_entry(node, {"n": str(n)}))  # type: ignore[misc]
        worker.finish()
    journal = Journal(tmp_path / metadata_module.JOURNAL_FILE)
    entries, _ = journal.open()
    assert len(entries) < 10 * 25
    store.close()
    again = _open(tmp_path)
    assert again.broker_configs == {str(node): {"n": "39"} for node in range(25)}


@pytest.mark.parametrize(
    ("was_clean", "boot_id", "is_doubtful"),
    [(False, "second", True), (False, None, True), (False, "first", False), (True, "second", False)],
)
def test_logs_are_doubtful_after_the_machine_went_down_under_a_broker(
    tmp_path: Path, was_clean: bool, boot_id: str | None, is_doubtful: bool
) -> None:
    store = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    store.open(boot_id="first")
    store.finish_adoption()
    topic = _create(store, "orders", 1, {}, _ID)
    assert store.doubtful_below_epoch(topic) == 0
    store.close()
    again = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    again.open(was_clean=was_clean, boot_id=boot_id)
    assert (again.doubtful_below_epoch(again.topics["orders"]) == 1) is is_doubtful
    again._journal.rewrite(again._image_entries())
    again.close()
    later = MetadataStore(tmp_path, NodeId(1), InlineWorker())
    later.open(was_clean=False, boot_id=boot_id or "third")
    expected = 2 if boot_id is None else 1
    assert (later.doubtful_below_epoch(later.topics["orders"]) == expected) is is_doubtful, "until something is logged"
