"""One node with its own controller: its metadata is in Kafka's files, and it serves as before."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from oncelog.cluster.journal import JournalDamaged
from oncelog.cluster.journal_entries import JournalState
from oncelog.cluster.kraft_metadata import load_image, load_settings
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.cluster.quorum_log import TOPIC
from oncelog.controller import metadata_batches
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from oncelog.protocol.messages import cluster_metadata
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.security.scram import ScramCredential, ScramMechanism, ScramUser
from oncelog.server import controller_node, server
from oncelog.server.authorization import Operation, Resource
from oncelog.server.own_controller import SHORTENED_AFTER_MS
from oncelog.storage.flush_work import FlushWork
from tests.data import journal, kafka
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import committed
from tests.virtual_clock import VirtualScheduler


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    return BrokerInProcess(tmp_path / "data")


JOURNALLED = journal.SETTINGS


def create(node: BrokerInProcess, name: str, partitions: int = 1, **configs: str) -> Any:
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)
    return node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7).topics[0]


def leader_epoch(node: BrokerInProcess, name: str) -> int:
    metadata = node.broker.metadata
    return metadata.partition_state(metadata.topics[name], 0).leader_epoch


def test_a_start_waits_for_nothing_but_the_disk(node: BrokerInProcess) -> None:
    before_ms = node.clock.monotonic_ms()
    node.broker.stop(clean=False)
    node.restart(clean=False)
    assert node.clock.monotonic_ms() - before_ms < 10


def test_the_quorum_is_the_node_itself(node: BrokerInProcess) -> None:
    topics = [RequestTopicData(topic_name=TOPIC, partitions=[RequestPartitionData(partition_index=0)])]
    [topic] = node.call(DescribeQuorumRequest(topics=topics), 2).topics
    [partition] = topic.partitions
    [voter] = partition.current_voters
    assert (partition.leader_id, voter.replica_id) == (node.broker.node_id, node.broker.node_id)
    assert voter.log_end_offset == partition.high_watermark > 0
    assert not partition.observers


def test_a_topic_is_there_when_its_creation_is_answered(node: BrokerInProcess) -> None:
    assert create(node, "orders", 3, cleanup_policy="compact").error_code == ErrorCode.NONE
    topic = node.broker.metadata.topics["orders"]
    assert (topic.partition_count, topic.configs) == (3, {"cleanup.policy": "compact"})
    assert node.produce("orders", [b"one"], partition=2).error_code == ErrorCode.INVALID_RECORD
    assert create(node, "orders").error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_topics_and_records_and_after_a_kill_a_higher_leader_epoch(
    node: BrokerInProcess, clean: bool
) -> None:
    create(node, "orders", 3, retention_ms="-1")
    assert node.produce("orders", [b"one"], partition=2).error_code == ErrorCode.NONE
    before = node.topic_id("orders"), leader_epoch(node, "orders")
    node.restart(clean=clean)
    topic = node.broker.metadata.topics["orders"]
    assert (topic.topic_id, topic.partition_count, topic.configs) == (before[0], 3, {"retention.ms": "-1"})
    assert leader_epoch(node, "orders") == before[1] if clean else leader_epoch(node, "orders") > before[1]
    answer = node.produce("orders", [b"two"], partition=2)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
    assert node.broker.log_dir.was_clean is clean


def init(node: BrokerInProcess, transactional_id: str | None = None) -> int:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    answer = node.call(request, 4)
    assert answer.error_code == ErrorCode.NONE
    return int(answer.producer_id)


@pytest.fixture(params=["stopped", "killed"])
def journalled(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a node with a journal, as earlier versions left it."""
    return journal.unpack(request.param, tmp_path)


def check_taken_over(node: BrokerInProcess, topic_id: UUID, epoch: int, secret: bytes | None) -> None:
    metadata = node.broker.metadata
    topic = metadata.topics["t"]
    assert (topic.topic_id, topic.partition_count, topic.configs) == (topic_id, 2, {"retention.ms": "-1"})
    assert leader_epoch(node, "t") > epoch
    assert node.produce("t", [b"two"], partition=1).base_offset == 1
    assert committed(node, "readers")[1] == 1
    assert metadata.users == {ScramUser("alice", ScramMechanism.SHA_256): ScramCredential(b"s", b"k", b"v", 4096)}
    assert [(acl.name, acl.principal) for acl in metadata.acls] == [("t", "User:alice")]
    assert metadata.quotas == {(("user", "alice"),): {"producer_byte_rate": 1e6}}
    assert node.broker.settings.integer("log.retention.ms") == -1
    assert metadata.secret == secret is not None


def last_state(folder: Path) -> tuple[UUID, int, bytes | None]:
    state = JournalState.read(folder / JOURNAL_FILE)
    image = state.image(uuid4)
    topic = image.topics[image.topic_ids["t"]]
    return topic.topic_id, topic.partitions[0].leader_epoch, state.secret


def test_a_journal_is_taken_over_once_and_an_earlier_version_refuses_the_folder(journalled: Path) -> None:
    before = last_state(journalled)
    node = BrokerInProcess(journalled, JOURNALLED)
    check_taken_over(node, *before)
    assert init(node, "id") == 0
    assert init(node) >= 1000, "the block of before is used up"
    topics = set(node.broker.metadata.topics)
    assert topics - {"u"} == {"t", *INTERNAL_TOPICS}, "that which was deleted stays so"
    node.restart()
    assert node.broker.metadata.topics.keys() == topics
    node.stop()
    with pytest.raises(JournalDamaged, match=r"moved to __cluster_metadata-0.*a newer Oncelog"):
        last_state(journalled)


def test_a_take_over_that_is_killed_is_made_up_for_by_the_next(
    journalled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = last_state(journalled)

    class Killed(Exception):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(NodeFacts, "write", kill)
        BrokerInProcess(journalled, JOURNALLED)
    # What a killed process leaves is its files, without its lock.
    left = Path(shutil.copytree(journalled, journalled.with_name("left")))
    check_taken_over(BrokerInProcess(left, JOURNALLED), *before)


def cut_metadata(folder: Path, size_bytes: int) -> None:
    path = max((folder / "__cluster_metadata-0").glob("*.log"))
    with path.open("r+b") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize("clean", [True, False])
def test_nothing_is_given_out_again_by_a_metadata_log_that_lost_its_end(tmp_path: Path, clean: bool) -> None:
    node = BrokerInProcess(tmp_path / "data", JOURNALLED)
    create(node, "orders")
    node.restart()
    log = max((node.folder / "__cluster_metadata-0").glob("*.log"))
    kept_bytes = log.stat().st_size
    create(node, "later", 2)
    producer_id = init(node)
    for topic in ("orders", "later"):
        produced = node.produce(topic, [b"one"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        assert produced.error_code == ErrorCode.NONE
    epoch, topic_id = leader_epoch(node, "orders"), node.topic_id("later")
    node.stop(clean=clean)
    cut_metadata(node.folder, kept_bytes)
    node = BrokerInProcess(node.folder, JOURNALLED)
    assert node.topic_id("later") == topic_id, "a topic that the metadata forgot is taken over"
    assert leader_epoch(node, "orders") > epoch
    assert init(node) > producer_id
    assert node.produce("later", [b"two"]).base_offset == 1


def skipping(node: BrokerInProcess, *highest: int) -> None:
    """Coordinators have found these producer ids in their logs, which the metadata does not know of."""
    for each in highest:
        node.broker.producer_ids.skip_above(each)


@pytest.mark.parametrize(
    ("before", "after"),
    [((5000,), ()), ((), (5000,)), ((5000,), (5000,)), ((1 << 40, 5000), ()), ((1 << 40,), (5000,))],
)
def test_producer_ids_that_are_skipped_while_others_are_asked_for_are_not_given_out(
    node: BrokerInProcess, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    skipping(node, *before)
    answer = node.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    skipping(node, *after)
    node.until(answer)
    assert answer.value.error_code == ErrorCode.NONE
    assert answer.value.producer_id > max(before + after)
    given = {answer.value.producer_id, init(node)}
    assert len(given) == 2
    node.restart(clean=False)
    assert init(node) not in given


def test_levels_of_features_that_were_changed_stay_so_unless_the_settings_name_one(node: BrokerInProcess) -> None:
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
    answer = node.call(UpdateFeaturesRequest(feature_updates=[update]), 1)
    assert (answer.error_code, answer.results[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    for clean in (True, False):
        node.restart(clean=clean)
        assert node.broker.finalised_features().levels["transaction.version"] == 1
    node.stop()
    node = BrokerInProcess(node.folder, {"transaction.version": "2"})
    assert node.broker.finalised_features().levels["transaction.version"] == 2


def test_the_only_broker_cannot_be_unregistered(node: BrokerInProcess) -> None:
    create(node, "t")
    answer = node.call(UnregisterBrokerRequest(broker_id=1), 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    node.clock.advance_ms(60_000)
    assert node.produce("t", [b"one"]).error_code == ErrorCode.NONE


def test_logs_are_read_after_a_kill_by_the_settings_that_were_changed_before(node: BrokerInProcess) -> None:
    day_ms = 86_400_000
    node.configure(ResourceType.BROKER, "", {"producer.id.expiration.ms": str(7 * day_ms)})
    create(node, "t", internal_segment_bytes="100")
    batch = {"producer_id": init(node), "producer_epoch": 0, "base_sequence": 0}
    assert node.produce("t", [b"one"], **batch).base_offset == 0
    node.restart()
    assert node.produce("t", [b"two"]).base_offset == 1
    node.stop(clean=False)
    node = BrokerInProcess(node.folder, clock=VirtualScheduler(node.clock.now_ms() + 2 * day_ms))
    assert node.produce("t", [b"one"], **batch).base_offset == 0, "its producer is still known"


def test_transactions_of_before_a_crash_of_the_machine_are_doubted(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", JOURNALLED)
    init(node, "id")
    epoch = leader_epoch(node, TRANSACTION_STATE_TOPIC)
    node.restart(clean=False)
    assert node.broker.metadata.doubtful_epoch == 0, "the broker was killed, the machine went on"
    node.boot_id = "another boot"
    node.restart(clean=False)
    doubtful = node.broker.metadata.doubtful_epoch
    assert epoch < doubtful <= leader_epoch(node, TRANSACTION_STATE_TOPIC)
    node.restart()
    assert node.broker.metadata.doubtful_epoch == doubtful


def test_a_start_on_which_nothing_is_new_does_not_write_what_the_node_knows_of_itself(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    node = BrokerInProcess(tmp_path)
    node.stop()
    left = path.stat().st_ino
    again = BrokerInProcess(tmp_path)
    assert path.stat().st_ino == left
    again.stop(clean=False)
    # How long the log is by now is noted, and so is another boot.
    known = NodeFacts.read(path)
    after_kill = BrokerInProcess(tmp_path)
    noted = NodeFacts.read(path)
    assert known is not None
    assert noted is not None
    assert noted.end_offset > known.end_offset
    after_kill.stop()
    other_boot = BrokerInProcess(tmp_path, boot_id="another boot")
    found = NodeFacts.read(path)
    assert found is not None
    assert found.boot_id == "another boot"
    other_boot.stop()


def test_the_secret_is_the_same_after_a_restart_and_for_the_owner_alone(node: BrokerInProcess) -> None:
    node.broker.make_secret()
    secret = node.broker.secret
    node.restart(clean=False)
    node.broker.make_secret()
    assert node.broker.secret == secret
    assert (node.folder / JOURNAL_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["tv2", "tv2-killed"])
def test_a_folder_of_apache_kafka_is_taken_over(kafka_data: Callable[[str], Path], name: str) -> None:
    clock = VirtualScheduler(kafka.contents(name)["written_at_ms"])
    settings = {"producer.id.expiration.ms": str(2**31 - 1)}
    node = BrokerInProcess(kafka_data(name), settings, clock=clock)
    topics = dict(node.broker.metadata.topics)
    assert topics["compacted"].configs["cleanup.policy"] == "compact"
    epoch = leader_epoch(node, "compacted")
    node.restart()
    found = {topic.name: topic.topic_id for topic in node.broker.metadata.topics.values()}
    assert found == {topic.name: topic.topic_id for topic in topics.values()}
    assert leader_epoch(node, "compacted") == epoch


def features(node: BrokerInProcess) -> Mapping[str, int]:
    assert node.broker.own_controller is not None
    return node.broker.own_controller.node.machine.view.image.features


def test_the_setting_of_the_transaction_protocol_counts_at_each_start(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {"transaction.version": "1"})
    create(node, "orders")
    assert features(node) == {"metadata.version": 30, "transaction.version": 1}
    node.stop()
    node = BrokerInProcess(node.folder, {"transaction.version": "0"})
    assert features(node) == {"metadata.version": 30}
    assert "orders" in node.broker.metadata.topics


@pytest.mark.parametrize("clean", [True, False])
def test_a_change_whose_fsync_fails_is_in_doubt_and_the_broker_ends(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    create(node, "orders")
    membership = node.broker.membership
    assert membership is not None

    def fail(_: FlushWork) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FlushWork, "run", fail)
        assert create(node, "lost").error_code == ErrorCode.REQUEST_TIMED_OUT, "the next start may find it"
    assert "cannot be written" in (membership.ended.value or "")
    node.restart(clean=clean)
    assert "orders" in node.broker.metadata.topics
    assert create(node, "later").error_code == ErrorCode.NONE


def test_users_with_ready_credentials_are_there_when_that_is_answered(node: BrokerInProcess) -> None:
    controller = node.broker.own_controller
    assert controller is not None
    user = ScramUser("alice", ScramMechanism.SHA_256)
    stored = controller.add_users({user: ScramCredential(b"s", b"k", b"v", 4096)})
    node.until(stored)
    assert stored.value is None
    assert list(node.broker.metadata.users) == [user]
    node.restart(clean=False)
    assert list(node.broker.metadata.users) == [user]


STEPS = ("replace", "rename", "mkdir", "unlink", "truncate", "ftruncate", "chmod")


@contextmanager
def copies_at_each_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folder as a kill would leave it before each change of its names."""
    copies: list[Path] = []
    is_copying = False

    def copying(call: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_call(*args: Any, **others: Any) -> Any:
            nonlocal is_copying
            if not is_copying:
                is_copying = True
                copies.append(Path(shutil.copytree(folder, folder.with_name(f"copy-{len(copies)}"))))
                is_copying = False
            return call(*args, **others)

        return copy_and_call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, copying(getattr(os, name)))
        yield copies


def test_a_take_over_can_be_killed_at_each_step(journalled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = last_state(journalled)
    with copies_at_each_step(journalled, monkeypatch) as copies:
        node = BrokerInProcess(journalled, JOURNALLED)
    check_taken_over(node, *before)
    node.stop()
    assert copies
    for copy in copies:
        node = BrokerInProcess(copy, JOURNALLED)
        check_taken_over(node, *before)
        assert init(node) >= 1000, "the block of before is used up"
        node.broker.stop(clean=False)


def test_a_start_on_a_log_that_lost_its_end_can_be_killed_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = BrokerInProcess(tmp_path / "data", JOURNALLED)
    create(node, "orders")
    node.restart()
    kept_bytes = max((node.folder / "__cluster_metadata-0").glob("*.log")).stat().st_size
    create(node, "later", 2)
    node.produce("later", [b"one"], partition=1)
    epoch, topic_id = leader_epoch(node, "orders"), node.topic_id("later")
    node.stop()
    cut_metadata(node.folder, kept_bytes)
    with copies_at_each_step(node.folder, monkeypatch) as copies:
        BrokerInProcess(node.folder, JOURNALLED).broker.stop(clean=False)
    assert copies
    for copy in copies:
        node = BrokerInProcess(copy, JOURNALLED)
        assert node.topic_id("later") == topic_id
        assert node.topic_id("orders")
        assert leader_epoch(node, "orders") >= epoch
        assert node.produce("later", [b"two"], partition=1).base_offset == 1
        node.broker.stop(clean=False)


def test_a_node_that_is_alone_has_room_for_so_many_partitions(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {**JOURNALLED, "oncelog.partitions.max": "5"})
    assert create(node, "a", 3).error_code == ErrorCode.NONE
    wanted = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in ("b", "c")]
    answer = node.call(CreateTopicsRequest(topics=wanted, timeout_ms=1000), 7)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    growth = CreatePartitionsTopic(name="a", count=4, assignments=None)
    (result,) = node.call(CreatePartitionsRequest(topics=[growth], timeout_ms=1000), 3).results
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    init(node, "id")
    assert TRANSACTION_STATE_TOPIC in node.broker.metadata.topics, "coordinators need their topics"


def test_a_node_that_is_alone_keeps_the_topics_of_its_coordinators_as_they_are(node: BrokerInProcess) -> None:
    init(node, "id")
    (deleted,) = node.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=TRANSACTION_STATE_TOPIC)], timeout_ms=1000), 6
    ).responses
    growth = CreatePartitionsTopic(name=TRANSACTION_STATE_TOPIC, count=99, assignments=None)
    (grown,) = node.call(CreatePartitionsRequest(topics=[growth], timeout_ms=1000), 3).results
    assert (deleted.error_code, grown.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST)
    assert TRANSACTION_STATE_TOPIC in node.broker.metadata.topics


def test_a_start_decodes_each_record_once_and_a_clean_stop_leaves_no_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = BrokerInProcess(tmp_path / "data", {"oncelog.partitions.max": "2000"})
    create(node, "wide", 1000, retention_ms="1")
    create(node, "gone", 500)
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=1000), 6)
    node.stop()
    decoded = 0
    decode = cluster_metadata.decode_metadata_record

    def count(value: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return decode(value)

    with monkeypatch.context() as patch:
        patch.setattr(metadata_batches, "decode_metadata_record", count)
        node = BrokerInProcess(node.folder, {"oncelog.partitions.max": "2000"})
    assert 1000 < decoded < 1050
    assert node.broker.metadata.topics["wide"].configs == {"retention.ms": "1"}
    assert node.produce("wide", [b"one"], partition=999).error_code == ErrorCode.NONE


def test_a_start_after_a_kill_decodes_each_change_once(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    create(node, "wide", 400)
    kinds: Counter[str] = Counter()
    decode = cluster_metadata.decode_metadata_record

    def count(value: Any) -> Any:
        record = decode(value)
        kinds[record.type_name] += 1
        return record

    with monkeypatch.context() as patch:
        patch.setattr(metadata_batches, "decode_metadata_record", count)
        node.restart(clean=False)
    assert (kinds["PARTITION_RECORD"], kinds["PARTITION_CHANGE_RECORD"]) == (400, 400)
    assert leader_epoch(node, "wide") == 1
    create(node, "more")
    assert "more" in node.broker.metadata.topics, "it goes on to follow the log"


def test_a_node_that_is_killed_again_and_again_has_no_more_to_read_each_time(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("wide", 400)
    node.restart(clean=False)
    decode = cluster_metadata.decode_metadata_record
    decoded: list[int] = []

    def count(value: Any) -> Any:
        decoded[-1] += 1
        return decode(value)

    monkeypatch.setattr(metadata_batches, "decode_metadata_record", count)
    for _ in range(9):
        node.clock.advance_ms(SHORTENED_AFTER_MS)
        decoded.append(0)
        node.restart(clean=False)
    # Each start changes all partitions, until the log is as long as its snapshot.
    assert decoded[1] < decoded[2] < decoded[3] < decoded[4]
    assert decoded[5:] == decoded[1:5]
    assert node.produce("wide", [b"one"], partition=399).error_code == ErrorCode.NONE


def test_a_log_that_is_shortened_while_a_change_is_applied_keeps_the_change(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is applied in slices, and the time for a shorter log comes in the middle of them."""
    monkeypatch.setattr(controller_node, "SLICE_MS", 0)
    assert node.broker.own_controller is not None
    controller = node.broker.own_controller.node

    def look() -> None:
        if controller._applying is None:
            node.clock.call_later_ms(0, look)
        else:
            controller.store_snapshot()

    look()
    wanted = CreatableTopic(name="wide", num_partitions=100, replication_factor=1)
    answer = node.send(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7)
    node.clock.advance_ms(10)
    assert answer.value.topics[0].error_code == ErrorCode.NONE
    node.restart(clean=False)
    assert node.broker.metadata.topics["wide"].partition_count == 100


def test_a_node_that_was_killed_changes_each_partition_once(node: BrokerInProcess) -> None:
    node.create("orders", 3)
    before = node.broker.metadata.image.topics[node.topic_id("orders")].partitions
    node.restart(clean=False)
    after = node.broker.metadata.image.topics[node.topic_id("orders")].partitions
    for index in range(3):
        assert after[index].leader == node.broker.node_id
        assert after[index].leader_epoch == before[index].leader_epoch + 1
        assert after[index].partition_epoch == before[index].partition_epoch + 1


def test_settings_are_found_without_all_else(node: BrokerInProcess) -> None:
    node.create("orders", 3, **{"retention.ms": "7"})
    node.configure(ResourceType.BROKER, "", {"log.retention.ms": "9"})
    node.stop(clean=False)
    found, loaded = load_settings(node.folder), load_image(node.folder).image
    assert found.settings == loaded.settings and len(found.settings) == 2
    assert loaded.topics and not found.topics
    node.broker = node._new()


def test_topics_and_partitions_are_known_as_they_come_and_go(node: BrokerInProcess) -> None:
    def known() -> dict[str, int]:
        return {topic.name: topic.partition_count for topic in node.broker.metadata.topics.values()}

    create(node, "a.b", 3)
    create(node, "c", 2)
    growth = CreatePartitionsTopic(name="c", count=5, assignments=None)
    node.call(CreatePartitionsRequest(topics=[growth], timeout_ms=1000), 3)
    assert known() == {"a.b": 3, "c": 5}
    assert create(node, "a_b").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="a.b")], timeout_ms=1000), 6)
    create(node, "a_b", 1)
    assert known() == {"a_b": 1, "c": 5}
    node.restart()
    assert known() == {"a_b": 1, "c": 5}


def test_clients_may_not_do_what_brokers_do(node: BrokerInProcess) -> None:
    assert not node.broker.authorizer.allows("User:ANONYMOUS", "h", Operation.CLUSTER_ACTION, Resource.CLUSTER, "c")
    assert node.broker.authorizer.allows("User:ANONYMOUS", "h", Operation.ALTER, Resource.CLUSTER, "c")


def test_ids_that_are_in_use_are_not_given_out_by_a_controller_that_has_forgotten_them(node: BrokerInProcess) -> None:
    given = init(node)
    node.broker.producer_ids.skip_above(given)
    assert init(node) == given + 1, "that was known"
    node.broker.producer_ids.skip_above(123_456)
    assert init(node) == 1 << 40
    node.restart(clean=False)
    assert init(node) > 1 << 40


def test_a_topic_id_that_a_power_cut_has_emptied_is_that_of_the_topic(node: BrokerInProcess) -> None:
    create(node, "orders")
    node.produce("orders", [b"one"])
    node.stop(clean=False)
    (node.folder / "orders-0" / "partition.metadata").write_bytes(b"")
    node.broker = node._new()
    assert node.produce("orders", [b"two"]).base_offset == 1


def test_a_deletion_that_is_committed_while_the_broker_ends_is_one_for_its_files(node: BrokerInProcess) -> None:
    for topic in ("first", "second"):
        create(node, topic)
        node.produce(topic, [b"old"])
    assert node.broker.membership is not None
    node.broker.membership.end(None)
    for topic in ("first", "second"):
        node.delete(topic)
    node.broker.stop()
    assert not (node.folder / "first-0").exists()
    assert not (node.folder / "second-0").exists()


def test_it_listens_on_all_addresses(tmp_path: Path) -> None:
    async def run() -> None:
        one = server.Server(tmp_path / "data", BROKER_CONFIG.parse({"listeners": "PLAINTEXT://0.0.0.0:0"}))
        address = await one.start()
        assert address.port
        await one.stop()

    asyncio.run(run())
    assert (tmp_path / "data" / "__cluster_metadata-0").is_dir()
