"""A data folder of Apache Kafka, taken over: everybody reads what Kafka itself served from it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.file_metadata_log import FileMetadataLog
from oncelog.cluster.metadata_draft import MetadataDraft
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.protocol.batch import decode_records, iter_headers
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from oncelog.storage.log_dir import LogDir, LogDirError
from tests.data import kafka
from tests.unit.cluster.test_kraft_metadata import batch, config
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import commit
from tests.unit.server.test_cleaning import committed as committed_offset
from tests.virtual_clock import VirtualScheduler

NAMES = ["tv0", "tv1", "tv2", "tv2-killed"]


@pytest.fixture
def adopt(kafka_data: Callable[[str], Path]) -> Callable[[str], BrokerInProcess]:
    def start(name: str) -> BrokerInProcess:
        settings = {
            "transaction.version": "2" if name == "tv2-killed" else name[2],
            # The recorded producers and ids belong to the time of the recording.
            "producer.id.expiration.ms": str(2**31 - 1),
        }
        clock = VirtualScheduler(kafka.contents(name)["written_at_ms"])
        return BrokerInProcess(kafka_data(name), settings, clock=clock)

    return start


def read(node: BrokerInProcess, topic: str, partition: int, start: int, committed: bool) -> list[list[Any]]:
    """What a consumer delivers, by the rules every client follows."""
    delivered: list[list[Any]] = []
    offset = start
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=5000)
        request = FetchRequest(
            isolation_level=int(committed), max_bytes=5000, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        answer = node.call(request, 12).responses[0].partitions[0]
        assert answer.error_code == 0
        if not len(answer.records):
            return delivered
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or [])
        aborting: set[int] = set()
        for position, header in iter_headers(answer.records):
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(aborted.pop(0)[1])
            records = decode_records(answer.records, position)
            offset = header.next_offset
            if header.is_control:
                if records and records[0].key == b"\0\0\0\0":
                    aborting.discard(header.producer_id)
                continue
            if committed and header.is_transactional and header.producer_id in aborting:
                continue
            for record in records:
                at = header.base_offset + record.offset_delta
                stamp = (
                    header.max_timestamp
                    if header.timestamp_type_append
                    else header.base_timestamp + record.timestamp_delta
                )
                delivered.append([at, stamp, _text(record.key), _text(record.value)])


def _note(metadata: str) -> str | None:
    """confluent-kafka commits its metadata with the final NUL of a C string, and drops it when it reads."""
    return metadata.rstrip("\0") or None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


@pytest.mark.parametrize("name", NAMES)
def test_readers_see_what_they_saw_at_apache_kafka(name: str, adopt: Callable[[str], BrokerInProcess]) -> None:
    node = adopt(name)
    expected = kafka.contents(name)["partitions"]
    for key, seen in expected.items():
        topic, _, index = key.rpartition("-")
        if topic.startswith("__"):
            continue
        partition = node.broker.partitions.get(topic, int(index))
        assert partition.high_watermark == seen["high_watermark"], key
        assert partition.last_stable_offset == seen["last_stable_offset"], key
        for committed, view in ((True, "committed"), (False, "uncommitted")):
            records = [record[:4] for record in seen[view]]
            assert read(node, topic, int(index), seen["start"], committed) == records, (key, view)


@pytest.mark.parametrize("name", NAMES)
def test_groups_and_transactions_are_as_apache_kafka_left_them(
    name: str, adopt: Callable[[str], BrokerInProcess]
) -> None:
    node = adopt(name)
    contents = kafka.contents(name)
    for group, offsets in contents["groups"].items():
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        answer = node.call(request, 8).groups[0]
        found = {
            f"{topic.name}-{partition.partition_index}": [partition.committed_offset, _note(partition.metadata)]
            for topic in answer.topics
            for partition in topic.partitions
        }
        assert found == offsets, group
    for transactional_id, described in contents["transactions"].items():
        state = node.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states[0]
        assert state.transaction_state == described["state"], transactional_id
        assert state.producer_id == described["producerId"]
        assert state.producer_epoch == described["epoch"]
        enlisted = [f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions]
        assert sorted(enlisted) == sorted(described["partitions"])


@pytest.mark.parametrize("name", NAMES)
def test_open_transactions_time_out_and_free_their_readers(name: str, adopt: Callable[[str], BrokerInProcess]) -> None:
    node = adopt(name)
    held_back = [
        partition
        for index in range(3)
        if (partition := node.broker.partitions.get("txn", index)).last_stable_offset < partition.high_watermark
    ]
    assert held_back
    node.clock.advance_ms(16 * 60_000)
    assert all(partition.last_stable_offset == partition.high_watermark for partition in held_back)


def test_new_producer_ids_are_far_from_those_of_kafka(adopt: Callable[[str], BrokerInProcess]) -> None:
    node = adopt("tv2")
    answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    assert answer.error_code == ErrorCode.NONE
    assert answer.producer_id >= 2**40


def test_topics_keep_their_ids_and_go_on_with_a_higher_epoch(adopt: Callable[[str], BrokerInProcess]) -> None:
    node = adopt("tv2")
    topic = node.broker.metadata.topics["txn"]
    assert topic.topic_id != uuid.UUID(int=0)
    partition = node.broker.partitions.get("txn", 0)
    assert partition.leader_epoch > partition.log.leader_epochs.latest_epoch
    before = partition.log.log_end_offset
    assert node.produce("txn", [b"more"]).base_offset == before


@pytest.fixture
def lost_metadata(tmp_path: Path) -> BrokerInProcess:
    """Stopped, with records of producer 0 and without its metadata: to Oncelog, a folder of somebody else's."""
    node = BrokerInProcess(tmp_path / "data", {"log.cleaner.enable": "false"})
    node.create("orders")
    node.produce("orders", [b"old"], producer_id=0, producer_epoch=0, base_sequence=0)
    lose_metadata(node)
    return node


def lose_metadata(node: BrokerInProcess) -> None:
    node.broker.stop()
    (node.folder / JOURNAL_FILE).unlink()
    shutil.rmtree(node.folder / "__cluster_metadata-0")


def new_producer_id(node: BrokerInProcess) -> int:
    node.until(node.broker.producer_ids.available())
    return node.broker.producer_ids.take()


class Killed(BaseException):
    pass


def killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.parametrize(
    "where",
    [
        (LogDir, "_open_logs"),
        (MetadataDraft, "apply"),
        (MetadataDraft, "skip_producer_ids_above"),
        (MetadataDraft, "finish_adoption"),
        (FileMetadataLog, "begin_anew"),
        (NodeFacts, "write"),
    ],
)
def test_a_first_start_that_is_killed_is_made_up_for_by_the_next(
    where: tuple[type, str], lost_metadata: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = lost_metadata
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(*where, killed)
        node._new()
    # What a killed process leaves is its files, without its lock.
    node.folder = Path(shutil.copytree(node.folder, node.folder.with_name("left")))
    node.broker = node._new()
    assert list(node.broker.metadata.topics) == ["orders"]
    partition = node.broker.partitions.get("orders", 0)
    assert partition.leader_epoch > 0
    answer = node.produce("orders", [b"new"], producer_id=new_producer_id(node), producer_epoch=0, base_sequence=0)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
    assert [record[3] for record in read(node, "orders", 0, 0, committed=True)] == ["old", "new"]


def test_producer_ids_are_new_each_time_the_metadata_is_lost(lost_metadata: BrokerInProcess) -> None:
    node = lost_metadata
    seen = []
    for number in range(3):
        node.broker = node._new()
        producer_id = new_producer_id(node)
        seen.append(producer_id)
        answer = node.produce("orders", [b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        assert answer.base_offset == number + 1
        lose_metadata(node)
    assert seen == [1 << 40, 2 << 40, 3 << 40]


SHORT_RETENTION = {"log.retention.ms": "1000", "log.retention.check.interval.ms": "1000"}
SMALL_COORDINATORS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "600000",
    "log.retention.check.interval.ms": "60000",
    "log.roll.ms": "300000",
}


def init(node: BrokerInProcess, transactional_id: str) -> tuple[int, int]:
    answer = node.call(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000), 4)
    assert answer.error_code == ErrorCode.NONE
    return answer.producer_id, answer.producer_epoch


def policies(node: BrokerInProcess) -> set[tuple[str, ...]]:
    return {log.config.cleanup_policy for key, log in node.broker.log_dir.logs.items() if key.topic in INTERNAL_TOPICS}


def test_offsets_and_transactional_ids_that_are_adopted_outlive_retention(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SMALL_COORDINATORS)
    node.create("t")
    commit(node, "g", 0, 42)
    assert init(node, "x") == (0, 0)
    before = {name: node.broker.metadata.topics[name].configs for name in INTERNAL_TOPICS}
    lose_metadata(node)
    node.broker = node._new()
    assert {name: node.broker.metadata.topics[name].configs for name in INTERNAL_TOPICS} == before
    assert policies(node) == {("compact",)}
    for _ in range(15):
        node.clock.advance_ms(60_000)
    node.restart()
    assert committed_offset(node, "g")[0] == 42
    assert init(node, "x") == (0, 1)


def test_internal_topics_that_were_adopted_without_settings_get_them(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SMALL_COORDINATORS)
    node.create("t")
    commit(node, "g", 0, 42)
    init(node, "x")
    full = dict(node.broker.metadata.topics[GROUP_METADATA_TOPIC].configs)
    own = {"max.message.bytes": "2000000"}
    node.configure(ResourceType.TOPIC, GROUP_METADATA_TOPIC, dict.fromkeys(full) | own)
    chosen_before = dict.fromkeys(node.broker.metadata.topics[TRANSACTION_STATE_TOPIC].configs)
    node.configure(ResourceType.TOPIC, TRANSACTION_STATE_TOPIC, chosen_before | {"cleanup.policy": "compact,delete"})
    node.restart()
    assert node.broker.metadata.topics[GROUP_METADATA_TOPIC].configs == full | own
    # What somebody has chosen is left alone.
    assert node.broker.metadata.topics[TRANSACTION_STATE_TOPIC].configs == {"cleanup.policy": "compact,delete"}
    assert policies(node) == {("compact",), ("compact", "delete")}


def test_groups_are_found_although_the_last_partitions_were_never_written(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {"offsets.topic.num.partitions": "50"})
    node.create("t")
    commit(node, "g", 0, 42)
    assert 0 < node.broker.groups.partition_of("g") < 49
    lose_metadata(node)
    node.broker = node._new()
    assert node.broker.metadata.topics[GROUP_METADATA_TOPIC].partition_count == 50
    assert committed_offset(node, "g")[0] == 42


def test_producer_ids_of_transactional_ids_that_wrote_nothing_are_not_given_to_others(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SMALL_COORDINATORS)
    seen = []
    for transactional_id in "abc":
        seen.append(init(node, transactional_id)[0])
        lose_metadata(node)
        node.broker = node._new()
    assert seen == [0, 1 << 40, 2 << 40]
    assert [init(node, transactional_id)[0] for transactional_id in "abc"] == seen


@pytest.mark.parametrize("name", NAMES)
def test_topics_keep_the_settings_that_kafka_had_for_them(kafka_data: Callable[[str], Path], name: str) -> None:
    clock = VirtualScheduler(kafka.contents(name)["written_at_ms"])
    node = BrokerInProcess(kafka_data(name), SHORT_RETENTION, clock=clock)
    log = node.broker.log_dir.logs[TopicPartition("compacted", 0)]
    assert log.config.cleanup_policy == ("compact",)
    end = log.log_end_offset
    node.clock.advance_ms(60_000)
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    assert configs_of(node, "plain")["retention.ms"] == "-1"
    assert configs_of(node, "append-time")["message.timestamp.type"] == "LogAppendTime"


def test_what_kafka_knows_and_this_broker_does_not_is_left_out(
    kafka_data: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = kafka_data("tv2")
    metadata_log = sorted((folder / "__cluster_metadata-0").glob("*.log"))[-1]
    configs = [("remote.storage.enable", "true"), ("retention.ms", "soon"), ("segment.ms", "123456")]
    with metadata_log.open("ab") as file:
        file.write(batch(1 << 40, *(config("compacted", *pair) for pair in configs)))
    node = BrokerInProcess(folder, {"producer.id.expiration.ms": str(2**31 - 1)})
    assert {"cleanup.policy": "compact", "segment.ms": "123456"}.items() <= configs_of(node, "compacted").items()
    assert not {"remote.storage.enable", "retention.ms"} & configs_of(node, "compacted").keys()
    assert "without its remote.storage.enable=true" in caplog.text and "retention.ms=soon" in caplog.text


def test_a_topic_whose_settings_are_not_known_loses_nothing(
    kafka_data: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = kafka_data("tv2")
    shutil.rmtree(folder / "__cluster_metadata-0")
    clock = VirtualScheduler(kafka.contents("tv2")["written_at_ms"])
    node = BrokerInProcess(folder, SHORT_RETENTION, clock=clock)
    log = node.broker.log_dir.logs[TopicPartition("compacted", 0)]
    assert configs_of(node, "compacted") == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert "the settings of topic compacted are not known" in caplog.text
    end = log.log_end_offset
    node.clock.advance_ms(60_000)
    assert (log.log_start_offset, log.log_end_offset) == (0, end)


def damage_the_middle(folder: Path) -> None:
    path = min((folder / "__cluster_metadata-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_topic_of_kafka_whose_metadata_is_damaged_before_its_end_loses_nothing(
    kafka_data: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = kafka_data("tv2")
    damage_the_middle(folder)
    node = BrokerInProcess(folder, clock=VirtualScheduler(kafka.contents("tv2")["written_at_ms"]))
    assert "is not read to its end" in caplog.text
    for _ in range(2):
        assert configs_of(node, "append-time")["retention.ms"] == "-1"
        node.restart()


def test_topics_beside_an_empty_metadata_folder_lose_nothing(lost_metadata: BrokerInProcess) -> None:
    node = lost_metadata
    (node.folder / "__cluster_metadata-0").mkdir()
    node.broker = node._new()
    assert configs_of(node, "orders") == {"retention.ms": "-1", "retention.bytes": "-1"}


def lose_facts(path: Path) -> None:
    path.unlink()


def damage_facts(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("lose", [lose_facts, damage_facts])
def test_a_node_that_has_its_metadata_log_and_nothing_else_keeps_its_settings(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    node = BrokerInProcess(tmp_path / "data")
    node.create("t", 3)
    node.create("wide", 5)
    assert node.produce("wide", [b"one"], partition=1).error_code == ErrorCode.NONE
    given = new_producer_id(node)
    node.configure(ResourceType.BROKER, "", {"log.retention.ms": "-1"})
    node.configure(ResourceType.BROKER, "1", {"log.retention.bytes": "123456"})
    node.configure(ResourceType.TOPIC, "t", {"segment.ms": "123456"})
    node.stop()
    lose(node.folder / JOURNAL_FILE)
    node = BrokerInProcess(node.folder)
    assert configs_of(node, "t") == {"segment.ms": "123456"}
    assert node.broker.settings.integer("log.retention.ms") == -1
    assert node.broker.settings.integer("log.retention.bytes") == 123456
    counts = {topic.name: topic.partition_count for topic in node.broker.metadata.topics.values()}
    assert counts == {"t": 3, "wide": 5}
    assert node.produce("wide", [b"two"], partition=1).base_offset == 1
    after = new_producer_id(node)
    assert after > given
    node.stop()
    lose(node.folder / JOURNAL_FILE)
    assert new_producer_id(BrokerInProcess(node.folder)) > after


@pytest.mark.parametrize("is_known", [True, False])
def test_a_quorum_state_that_cannot_be_read_is_said_in_words(tmp_path: Path, is_known: bool) -> None:
    node = BrokerInProcess(tmp_path / "data")
    node.stop()
    (node.folder / "__cluster_metadata-0" / "quorum-state").write_bytes(b"")
    if not is_known:
        (node.folder / JOURNAL_FILE).unlink()
    with pytest.raises(LogDirError, match=r"quorum-state is empty or damaged .* Remove it"):
        BrokerInProcess(node.folder)


def configs_of(node: BrokerInProcess, topic: str) -> Mapping[str, str]:
    return node.broker.metadata.topics[topic].configs
