from __future__ import annotations

import uuid
from pathlib import Path

from oncelog.cluster import metadata as metadata_module
from oncelog.cluster.metadata import PRODUCER_ID_BLOCK, MetadataStore

_ID = uuid.UUID(int=7)


def _open(folder: Path) -> MetadataStore:
    store = MetadataStore(folder)
    store.open()
    return store


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    store = _open(tmp_path)
    store.create_topic("orders", 3, {"retention.ms": "5"}, _ID)
    store.create_topic("gone", 1, {}, uuid.UUID(int=8))
    store.delete_topic("gone")
    store.add_partitions("orders", 5)
    store.set_topic_configs("orders", {"retention.ms": "6"})
    store.set_broker_configs("", {"num.partitions": "4"})
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
        seen += [store.next_producer_id() for _ in range(PRODUCER_ID_BLOCK // 2 + 1)]
        # No clean stop: whatever was not journalled is lost with the object.
        store._journal.close()
    assert len(set(seen)) == len(seen)


def test_leader_epochs_count_the_starts_since_the_topic_was_made(tmp_path: Path) -> None:
    store = _open(tmp_path)
    old = store.create_topic("old", 1, {}, _ID)
    assert store.leader_epoch(old) == 0
    store.close()
    store = _open(tmp_path)
    young = store.create_topic("young", 1, {}, uuid.UUID(int=9))
    assert store.leader_epoch(store.topics["old"]) == 1
    assert store.leader_epoch(young) == 0
    store.close()
    store = _open(tmp_path)
    assert [store.leader_epoch(store.topics[name]) for name in ("old", "young")] == [2, 1]


def test_an_adopted_topic_goes_on_above_the_last_epoch_of_its_log(tmp_path: Path) -> None:
    store = _open(tmp_path)
    assert store.is_new
    topic = store.adopt_topic("orders", 2, _ID, leader_epoch=4)
    assert store.leader_epoch(topic) == 5


def test_the_journal_is_rewritten_before_it_grows_without_end(tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.setattr(metadata_module, "_REWRITE_LINES_MIN", 20)  # type: ignore[attr-defined]
    store = _open(tmp_path)
    store.create_topic("orders", 1, {}, _ID)
    for n in range(500):
        store.set_topic_configs("orders", {"retention.ms": str(n)})
        store.next_producer_id()
    store.close()
    path = tmp_path / metadata_module.JOURNAL_FILE
    assert len(path.read_bytes().splitlines()) < 60
    assert _open(tmp_path).topics["orders"].configs == {"retention.ms": "499"}
