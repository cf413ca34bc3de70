"""A metadata log that lost its end: no producer id and no epoch that a log has seen is given out again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.cluster.node_facts import NodeFacts
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.storage import partition_metadata
from oncelog.storage.log_dir import LogDir, LogDirError
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_transactions import Producer, stable
from tests.unit.storage.cleaner_harness import read_committed

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
}
TOPIC = "orders"
BATCHES = 30


def metadata_log(folder: Path) -> Path:
    return max((folder / "__cluster_metadata-0").glob("*.log"))


class History:
    """Starts, producers and transactions until the log has so many batches. Then the broker is gone."""

    def __init__(self, folder: Path, *, clean: bool) -> None:
        self.folder = folder
        self.producer_ids: set[int] = set()
        self.values: list[bytes] = []
        node = self.node = BrokerInProcess(folder, SETTINGS)
        node.create(TOPIC)
        self.write(node)
        while len(self.batches) < BATCHES:
            node.restart(clean=False)
            self.write(node)
        node.stop(clean=clean)

    @property
    def path(self) -> Path:
        return metadata_log(self.folder)

    @property
    def batches(self) -> list[int]:
        """Where they begin."""
        return [position for position, _ in iter_headers(self.path.read_bytes())]

    def write(self, node: BrokerInProcess) -> None:
        """One record of a new idempotent producer, and one in a transaction."""
        value = b"plain-%d" % len(self.values)
        answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        assert answer.error_code == 0
        assert answer.producer_id not in self.producer_ids
        self.producer_ids.add(answer.producer_id)
        end = node.broker.partitions.get(TOPIC, 0).log.log_end_offset
        produced = node.produce(TOPIC, [value], producer_id=answer.producer_id, producer_epoch=0, base_sequence=0)
        assert (produced.error_code, produced.base_offset) == (0, end)
        producer = Producer(node, f"id-{len(self.values)}")
        assert producer.init().value.error_code == 0
        assert producer.pid not in self.producer_ids
        self.producer_ids.add(producer.pid)
        self.values += [value, value + b"-in-transaction"]
        assert producer.produce(TOPIC, self.values[-1]).error_code == 0
        assert producer.end(commit=True).value.error_code == 0

    def check(self, node: BrokerInProcess, *, after_clean_stop: bool = False) -> None:
        """All that was written is there, and what is written now does not collide with it."""
        partition = node.broker.partitions.get(TOPIC, 0)
        assert partition.leader_epoch + after_clean_stop > partition.log.leader_epochs.latest_epoch
        coordinator_epoch = node.broker.partitions.get(TRANSACTION_STATE_TOPIC, 0).leader_epoch
        seen = [producer.coordinator_epoch for producer in partition.log.producer_state.active_producers()]
        assert coordinator_epoch + after_clean_stop > max(seen)
        self.write(node)
        lso, end = stable(node, TOPIC)
        assert lso == end
        assert [value for _, value in read_committed(partition.log).values()] == self.values


def damage_last_batch(history: History) -> None:
    data = bytearray(history.path.read_bytes())
    data[-3] ^= 1
    history.path.write_bytes(data)


def cut_in_last_batch(history: History) -> None:
    history.path.write_bytes(history.path.read_bytes()[:-3])


def cut_before_batch(number: int) -> Callable[[History], None]:
    return lambda history: history.path.write_bytes(history.path.read_bytes()[: history.batches[number]])


def lose_all(history: History) -> None:
    shutil.rmtree(history.path.parent)


def follow_the_error_message(history: History) -> None:
    truncate_as_told(history.node, history.batches[9])


def truncate_as_told(node: BrokerInProcess, batch: int) -> str:
    """Damage in the middle, in the batch that begins there, and then what the refusal says. Returns its text."""
    path = metadata_log(node.folder)
    data = bytearray(path.read_bytes())
    data[batch + 70] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDirError) as refusal:
        node._new()
    assert path.read_bytes() == data
    told = str(refusal.value)
    size, named = told.partition("truncate -s ")[2].partition("'")[0].split(" ")
    assert named == str(path)
    path.write_bytes(data[: int(size)])
    return told


TORN = {
    "last batch damaged": damage_last_batch,
    "last batch torn": cut_in_last_batch,
    "as the error message says": follow_the_error_message,
}
LOSSES = {
    **TORN,
    "all of it": lose_all,
    **{f"cut before batch {number}": cut_before_batch(number) for number in (0, 1, 2, 3, 5, 7, 9, 12, 16, 20, 25, 29)},
}


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_nothing_that_a_log_has_seen_is_given_out_again(
    tmp_path: Path, lose: Callable[[History], None], clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(tmp_path / "data", clean=clean)
    lose(history)
    node = history.node
    for after_clean_stop in (False, True):
        caplog.clear()
        node.broker = node._new()
        if lose in TORN.values():
            assert ("the metadata has lost its end: its last" in caplog.text) is not after_clean_stop
        history.check(node, after_clean_stop=after_clean_stop)
        node.stop()


class Killed(BaseException):
    pass


def test_a_start_on_a_cut_log_that_is_killed_is_made_up_for_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "data", clean=True)
    follow_the_error_message(history)
    node = history.node

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(NodeFacts, "write", killed)
        node._new()
    # What a killed process leaves is its files, without its lock.
    node.folder = Path(shutil.copytree(node.folder, node.folder.with_name("left")))
    node.broker = node._new()
    history.check(node)
    node.broker.stop()


def test_partitions_and_topics_that_the_log_forgot_are_served_again(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("old")
    node.create("again")
    size = metadata_log(node.folder).stat().st_size
    old_id = node.topic_id("again")
    growth = CreatePartitionsTopic(name="old", count=3, assignments=None)
    node.call(CreatePartitionsRequest(topics=[growth], timeout_ms=1000), 3)
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="again")], timeout_ms=1000), 6)
    for topic in ("new", "again"):
        node.create(topic)
    for topic, partition in (("old", 2), ("new", 0), ("again", 0)):
        assert node.produce(topic, [topic.encode()], partition=partition).error_code == 0
    new_id = node.topic_id("again")
    node.stop()
    with metadata_log(node.folder).open("r+b") as file:
        file.truncate(size)
    node.broker = node._new()
    topics = node.broker.metadata.topics
    assert {name: topic.partition_count for name, topic in topics.items()} == {"old": 3, "new": 1, "again": 1}
    assert topics["again"].topic_id == new_id != old_id
    assert topics["new"].configs == {"retention.ms": "-1", "retention.bytes": "-1"}
    for topic, partition in (("old", 2), ("new", 0), ("again", 0)):
        log = node.broker.partitions.get(topic, partition).log
        assert [value for _, value in read_committed(log).values()] == [topic.encode()]
    node.broker.stop()


def test_the_error_message_tells_what_is_given_up(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    for topic in ("kept", "deleted"):
        node.create(topic)
        assert node.produce(topic, [b"before"]).error_code == 0
    batch = metadata_log(node.folder).stat().st_size
    node.configure(ResourceType.TOPIC, "kept", {"retention.ms": "12345678"})
    node.delete("deleted")
    node.create("created", retention_ms="12345678")
    assert node.produce("created", [b"after"]).error_code == 0
    node.stop()
    told = truncate_as_told(node, batch)
    node.broker = node._new()
    topics, partitions = node.broker.metadata.topics, node.broker.partitions
    assert "Settings are then as before these changes, also those of retention" in told
    assert topics["kept"].configs == {}
    assert len(read_committed(partitions.get("kept", 0).log)) == 1
    assert "topics that were deleted are back, without records" in told
    assert partitions.get("deleted", 0).log.log_end_offset == 0
    assert "topics that were created keep their records and lose their settings" in told
    assert topics["created"].configs == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert len(read_committed(partitions.get("created", 0).log)) == 1
    node.broker.stop()


def test_a_clean_start_reads_no_log_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path / "data", clean=True)
    node = history.node
    opened: list[LogDir] = []
    original = LogDir.open.__func__  # type: ignore[attr-defined]

    def open_folder(cls: type[LogDir], *arguments: object, **options: object) -> LogDir:
        opened.append(original(cls, *arguments, **options))
        return opened[-1]

    monkeypatch.setattr(LogDir, "open", classmethod(open_folder))
    monkeypatch.setattr("oncelog.server.broker.Broker.start", lambda _: None)
    node.broker = node._new()
    assert {key.topic for key, log in opened[0].logs.items() if log.is_loaded} <= INTERNAL_TOPICS, "of coordinators"
    node.broker.stop()


def test_a_producer_id_that_somebody_made_up_is_not_given_out_either(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create(TOPIC)
    for made_up in (5, 2**62 - 1, 2**63 - 1):
        node.produce(TOPIC, [b"x"], producer_id=made_up, producer_epoch=0, base_sequence=0)
    node.restart(clean=False)
    given = []
    for _ in range(10):
        answer = node.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        node.until(answer)
        given.append(answer.value.producer_id)
    assert set(given).isdisjoint({5, 2**62 - 1, 2**63 - 1})
    assert max(given) < 2**63
    node.broker.stop()


def test_a_coordinator_begins_above_the_epochs_of_its_markers_if_its_own_log_is_lost_as_well(tmp_path: Path) -> None:
    """Partitions would refuse its markers as those of a coordinator that was replaced."""
    history = History(tmp_path / "data", clean=False)
    lose_all(history)
    for path in (history.folder / f"{TRANSACTION_STATE_TOPIC}-0").iterdir():
        if path.name != partition_metadata.FILE_NAME:
            path.unlink()
    history.check(BrokerInProcess(history.folder, SETTINGS))


def test_a_producer_id_that_only_its_transactional_id_has_is_not_given_out_again(tmp_path: Path) -> None:
    """It has written nothing, so that no partition has seen it."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    silent = Producer(node, "silent")
    assert silent.init().value.error_code == 0
    node.stop(clean=False)
    shutil.rmtree(metadata_log(node.folder).parent)
    node = BrokerInProcess(node.folder, SETTINGS)
    answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert answer.producer_id > silent.pid


def test_a_producer_id_that_only_a_record_has_is_not_given_out_again(tmp_path: Path) -> None:
    """Where nobody uses transactions. Its successor's first record would be taken for a duplicate."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create(TOPIC)
    answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    before = {"producer_id": answer.producer_id, "producer_epoch": 0, "base_sequence": 0}
    assert node.produce(TOPIC, [b"a"], **before).base_offset == 0
    node.stop(clean=False)
    shutil.rmtree(metadata_log(node.folder).parent)
    node = BrokerInProcess(node.folder, SETTINGS)
    answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert answer.producer_id > before["producer_id"]
    assert node.produce(TOPIC, [b"b"], **{**before, "producer_id": answer.producer_id}).base_offset == 1


def test_topics_are_taken_over_when_the_metadata_of_a_nodes_first_life_is_lost(tmp_path: Path) -> None:
    """Nothing says how long it was, and no producer id that it must have given out. It is removed as a message says."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create(TOPIC)
    assert node.produce(TOPIC, [b"a"]).error_code == 0
    node.stop(clean=False)
    shutil.rmtree(metadata_log(node.folder).parent)
    node = BrokerInProcess(node.folder, SETTINGS)
    assert list(node.broker.metadata.topics) == [TOPIC]
    assert len(read_committed(node.broker.partitions.get(TOPIC, 0).log)) == 1
