"""The observer of the quorum, with answers that an Apache Kafka controller gave and with made-up ones."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.quorum_log import BACKOFF_MS, FETCH_TIMEOUT_MS, TOPIC_ID, Leader, QuorumLog, Send, Update
from oncelog.controller.checkpoint import Checkpoint, Quorum, encode_checkpoint
from oncelog.controller.errors import InvalidMetadata
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId, uuid_from_text
from oncelog.protocol.api import decode_response
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.compiler import encode_bytes
from oncelog.protocol.messages.cluster_metadata import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    NoOpRecord,
    VoterEndpoint,
    VotersRecord,
    VotersVoter,
    control_key,
    encode_metadata_record,
)
from oncelog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from oncelog.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    TopicSnapshot,
)
from oncelog.protocol.messages.fetch_snapshot import SnapshotId as FetchedId
from oncelog.protocol.schema import Message
from tests.unit.controller.metadata import LEVEL_30, image_of

CAPTURED = json.loads((Path(__file__).parents[2] / "data" / "quorum" / "answers.json").read_text())
FIRST, SECOND, THIRD = Address("c1", 9093), Address("c2", 9093), Address("c3", 9093)
LEADING = {1: FIRST, 2: SECOND}


def captured(name: str) -> Any:
    found = CAPTURED[name]
    return decode_response(found["key"], found["version"], bytes.fromhex(found["answer"]))


def observer(*bootstrap: Address, replica_id: int = 100) -> QuorumLog:
    directory_id = uuid.UUID("fe4b4b16-53f5-d8e3-4a4b-d0cad5235713")
    return QuorumLog(
        cluster_id="b25jZWxvZy1wZWVyLTAwMQ",
        replica_id=replica_id,
        directory_id=directory_id,
        bootstrap=bootstrap or [FIRST, SECOND],
    )


def send(log: QuorumLog, now_ms: int = 0) -> Send:
    found = log.poll(now_ms)
    assert found is not None
    return found


def asked(sent: Send) -> FetchPartition:
    assert isinstance(sent.request, FetchRequest)
    return sent.request.topics[0].partitions[0]


def fetched(log: QuorumLog, response: FetchResponse | None = None, now_ms: int = 0, **fields: Any) -> Update | None:
    return log.on_fetch(send(log, now_ms).number, response or answer(**fields), now_ms)


def answer(leader: int = 1, epoch: int = 3, **fields: Any) -> FetchResponse:
    partition = PartitionData(
        current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch), **({"high_watermark": 0} | fields)
    )
    nodes = [NodeEndpoint(node_id=node, host=at.host, port=at.port) for node, at in LEADING.items() if node == leader]
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])
    return FetchResponse(responses=[topic], node_endpoints=nodes)


def batch(base_offset: int, *messages: Message, epoch: int = 3) -> bytes:
    values = [encode_metadata_record(message, 0) for message in messages]
    records = [Record(number, 0, None, value) for number, value in enumerate(values)]
    return build_batch(records, timestamp_ms=0, base_offset=base_offset, leader_epoch=epoch)


def config(value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name="t", name="x", value=value)


def settings(log: QuorumLog) -> str | None:
    return log.image.topic_settings("t").get("x")


def test_the_first_fetch_is_that_of_a_java_broker() -> None:
    sent = send(observer(replica_id=1), 5)
    assert (sent.number, sent.address) == (1, FIRST)
    assert encode_bytes(sent.request, 18).hex() == (
        "000001f400000000001000000000000000ffffffff0200000000000000000000000000000001020000000000000000000000000000000000"
        "000000ffffffffffffffff00000000020010fe4b4b1653f5d8e34a4bd0cad52357130108ffffffffffffffff00010102001717623235"
        "6a5a5778765a7931775a5756794c5441774d51010d00000001ffffffffffffffff00"
    )


def test_the_id_of_a_controller_is_not_for_a_broker() -> None:
    with pytest.raises(KafkaError, match=r"node\.id 1 is the id of a controller of the cluster"):
        fetched(observer(replica_id=1), error_code=ErrorCode.FENCED_LEADER_EPOCH)
    log = observer(replica_id=2)
    fetched(log, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    voters = VotersRecord(voters=[VotersVoter(voter_id=1), VotersVoter(voter_id=2)])
    control = build_batch(
        [Record(0, 0, control_key(voters), encode_bytes(voters, 0))],
        timestamp_ms=0, base_offset=0, leader_epoch=3, control=True,
    )  # fmt: skip
    with pytest.raises(KafkaError, match=r"node\.id 2 is the id of a controller of the cluster"):
        fetched(log, records=control, high_watermark=1)


def test_following_a_controller_of_kafka_from_the_beginning() -> None:
    log = observer()
    assert fetched(log, captured("fenced")) is None
    assert log.leader is not None and (log.leader.node_id, log.leader.epoch) == (1, 1)
    first = fetched(log, captured("first records"))
    assert first is not None
    assert (first.last_offset, log.end_offset) == (19, 20)
    assert first.image.metadata_version == 30
    assert first.image.brokers.keys() == first.delta.brokers.keys() == {1}
    assert log.quorum.kraft_version == 1
    sent = send(log)
    assert (asked(sent).fetch_offset, asked(sent).current_leader_epoch, asked(sent).high_watermark) == (20, 1, 20)
    second = log.on_fetch(sent.number, captured("own registration"), 0)
    assert second is not None
    assert second.delta.brokers.keys() == {2}
    assert second.image.brokers[NodeId(2)].epoch == 20


def test_following_a_controller_of_kafka_from_a_snapshot() -> None:
    log = observer()
    fetched(log, captured("fenced"))
    assert fetched(log, captured("snapshot id")) is None
    sent = send(log)
    assert isinstance(sent.request, FetchSnapshotRequest)
    wanted = sent.request.topics[0].partitions[0]
    assert (wanted.snapshot_id, wanted.position) == (FetchedId(end_offset=94, epoch=1), 0)
    assert log.on_snapshot(sent.number, captured("snapshot"), 0) is None, "what is committed behind it is not read yet"
    sent = send(log)
    assert asked(sent).fetch_offset == 94
    update = log.on_fetch(sent.number, captured("behind the snapshot"), 0)
    assert update is not None
    assert {"orders", "moved", "gone"} <= update.image.topic_ids.keys()
    assert update.last_offset == 102
    assert log.quorum.voters is not None


def test_what_is_not_committed_is_held() -> None:
    log = observer()
    records = batch(0, LEVEL_30, config("1")) + batch(2, config("2"))
    assert fetched(log, records=records, high_watermark=2) is not None
    assert (settings(log), log.last_offset, log.end_offset) == ("1", 1, 3)
    sent = send(log)
    assert (asked(sent).fetch_offset, asked(sent).last_fetched_epoch, asked(sent).high_watermark) == (3, 3, 2)
    update = log.on_fetch(sent.number, answer(high_watermark=3), 0)
    assert update is not None and update.delta.settings.keys() == {(2, "t")}
    assert settings(log) == "2"
    assert fetched(log, high_watermark=3) is None, "nothing is new"


def test_the_first_update_comes_when_all_that_was_committed_is_there() -> None:
    log = observer()
    assert fetched(log, records=batch(0, config("1")), high_watermark=2) is None
    assert log.last_offset == -1
    update = fetched(log, records=batch(1, config("2")), high_watermark=9)
    assert update is not None and update.last_offset == 1


def test_no_more_than_so_many_batches_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.cluster.quorum_log._HELD_MAX", 2)
    log = observer()
    data = [batch(offset, config(str(offset))) for offset in range(4)]
    fetched(log, records=b"".join(data), high_watermark=0)
    fetched(log, records=b"".join(data[2:]), high_watermark=0)
    sent = send(log)
    assert asked(sent).fetch_offset == 2
    log.on_fetch(sent.number, answer(high_watermark=4), 0)
    fetched(log, records=b"".join(data[2:]), high_watermark=4)
    assert settings(log) == "3"


def test_a_batch_that_is_cut_off_is_fetched_again() -> None:
    log = observer()
    whole, cut = batch(0, config("1")), batch(1, config("2"))
    fetched(log, records=whole + cut[:-4], high_watermark=1)
    assert asked(send(log)).fetch_offset == 1


def test_records_of_a_transaction_come_with_its_end() -> None:
    log = observer()
    fetched(log, records=batch(0, config("1")), high_watermark=1)
    assert fetched(log, records=batch(1, BeginTransactionRecord(), config("2")), high_watermark=3) is None
    assert (settings(log), log.last_offset) == ("1", 0)
    update = fetched(log, records=batch(3, EndTransactionRecord()), high_watermark=4)
    assert update is not None
    assert (settings(log), log.last_offset) == ("2", 3)


def test_records_that_the_new_leader_does_not_have_are_dropped() -> None:
    log = observer()
    records = (
        batch(0, config("1")) + batch(1, config("2")) + batch(2, config("3"), epoch=4) + batch(3, NoOpRecord(), epoch=5)
    )
    fetched(log, records=records, high_watermark=1, epoch=5)
    assert (log.end_offset, log.last_epoch) == (4, 5)
    diverging = EpochEndOffset(epoch=4, end_offset=9)
    assert fetched(log, diverging_epoch=diverging, epoch=6, high_watermark=4) is None, "its high watermark says nothing"
    assert (log.end_offset, log.last_epoch) == (3, 4)
    fetched(log, diverging_epoch=EpochEndOffset(epoch=3, end_offset=2), epoch=6)
    assert (log.end_offset, log.last_epoch, settings(log)) == (2, 3, "1")
    fetched(log, records=batch(2, config("4"), epoch=6), epoch=6, high_watermark=3)
    assert settings(log) == "4"


@pytest.mark.parametrize(("epoch", "end"), [(2, 9), (3, 1)])
def test_controllers_that_have_lost_what_was_committed_are_not_followed(epoch: int, end: int) -> None:
    log = observer()
    fetched(log, records=batch(0, config("1"), config("2")), high_watermark=2)
    with pytest.raises(InvalidMetadata, match="lost committed metadata"):
        fetched(log, diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end))


def test_who_does_not_lead_tells_who_does() -> None:
    log = observer()
    before = send(log)
    log.on_fetch(before.number, answer(leader=2, epoch=7, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    assert log.leader == Leader(2, 7, SECOND)
    after = send(log)
    assert (after.address, asked(after).current_leader_epoch) == (SECOND, 7)
    assert after.connection != before.connection


def test_without_a_leader_others_are_asked_after_a_moment() -> None:
    log = observer()
    fetched(log, leader=-1, epoch=7, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms=100)
    assert (log.leader, log.wake_ms) == (None, 100 + BACKOFF_MS)
    assert log.poll(100 + BACKOFF_MS - 1) is None
    sent = send(log, 100 + BACKOFF_MS)
    assert (sent.address, asked(sent).current_leader_epoch) == (SECOND, 7)


def test_an_epoch_never_goes_back() -> None:
    log = observer()
    fetched(log, epoch=7)
    fetched(log, leader=2, epoch=6, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert log.leader is None, "the one that was known has nothing to say any more"
    assert asked(send(log, BACKOFF_MS)).current_leader_epoch == 7


@pytest.mark.parametrize("kind", ["failure", "silence"])
def test_a_controller_that_does_not_answer_is_left(kind: str) -> None:
    log = observer()
    first = send(log, 0)
    if kind == "failure":
        log.on_failure(first.number, 0)
        second = send(log, BACKOFF_MS)
    else:
        assert log.wake_ms == FETCH_TIMEOUT_MS
        assert log.poll(FETCH_TIMEOUT_MS - 1) is None
        second = send(log, FETCH_TIMEOUT_MS)
    assert (second.address, second.connection != first.connection) == (SECOND, True)
    late = answer(records=batch(0, config("1")), high_watermark=1)
    assert log.on_fetch(first.number, late, 0) is None
    log.on_failure(first.number, 0)
    assert log.end_offset == 0
    assert log.on_fetch(second.number, late, 0) is not None


def test_voters_are_asked_as_well_as_those_that_settings_name() -> None:
    endpoint = VoterEndpoint(name="CONTROLLER", host=THIRD.host, port=THIRD.port)
    quorum = Quorum(1, VotersRecord(voters=[VotersVoter(voter_id=3, endpoints=[endpoint])]))
    log = observer(FIRST)
    log.quorum = quorum
    addresses = []
    for moment in range(3):
        sent = send(log, moment * 1000)
        addresses.append(sent.address)
        log.on_failure(sent.number, moment * 1000)
    assert addresses == [FIRST, THIRD, FIRST]


def snapshot_of(image_value: str) -> bytes:
    image = image_of(LEVEL_30, config(image_value))
    return encode_checkpoint(Checkpoint(image, Quorum(1), 0), epoch=4, timestamp_ms=0)


def piece(log: QuorumLog, data: bytes, end: int, **fields: Any) -> Update | None:
    sent = send(log, 10_000)
    assert isinstance(sent.request, FetchSnapshotRequest)
    position = sent.request.topics[0].partitions[0].position
    values = {
        "snapshot_id": FetchedId(end_offset=50, epoch=4),
        "size": len(data),
        "position": position,
        "unaligned_records": data[position:end],
    }
    partition = PartitionSnapshot(**(values | fields))
    return log.on_snapshot(
        sent.number, FetchSnapshotResponse(topics=[TopicSnapshot(name="t", partitions=[partition])]), 10_000
    )


def test_a_snapshot_comes_in_pieces_and_replaces_what_was_known() -> None:
    log = observer()
    other = ConfigRecord(resource_type=2, resource_name="gone", name="x", value="1")
    fetched(log, records=batch(0, LEVEL_30, config("1"), other), high_watermark=3)
    fetched(log, records=batch(3, config("not committed yet")), high_watermark=3)
    fetched(log, snapshot_id=SnapshotId(end_offset=50, epoch=4))
    data = snapshot_of("2")
    assert piece(log, data, 30) is None
    assert piece(log, data, 99) is None
    update = piece(log, data, len(data))
    assert update is not None
    assert update.delta.settings.keys() == {(2, "t"), (2, "gone")}
    assert (settings(log), update.last_offset, log.quorum.kraft_version) == ("2", 49, 1)
    sent = send(log, 10_000)
    assert (asked(sent).fetch_offset, asked(sent).last_fetched_epoch) == (50, 4)


def test_an_answer_that_names_a_snapshot_of_what_is_known_meanwhile_takes_nothing_back() -> None:
    """The controller in the same process has cut its log after the question, and then handed over all that it has."""
    log = observer()
    sent = send(log)
    log.begin_with(image_of(LEVEL_30, config("2")), Quorum(), end_offset=60, epoch=4)
    update = log.on_fetch(
        sent.number, answer(epoch=4, snapshot_id=SnapshotId(end_offset=50, epoch=4), high_watermark=60), 0
    )
    assert update is not None, "there may be no other answer for a while"
    assert (settings(log), update.last_offset) == ("2", 59)
    assert asked(send(log)).fetch_offset == 60


@pytest.mark.parametrize(
    "fields",
    [
        {"error_code": int(ErrorCode.SNAPSHOT_NOT_FOUND)},
        {"error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER)},
        {"position": 7},
        {"unaligned_records": b""},
        {"snapshot_id": FetchedId(end_offset=60, epoch=4)},
    ],
)
def test_a_snapshot_that_cannot_be_had_is_given_up(fields: dict[str, Any]) -> None:
    log = observer()
    fetched(log, snapshot_id=SnapshotId(end_offset=50, epoch=4))
    assert piece(log, snapshot_of("2"), 30, **fields) is None
    assert isinstance(send(log, 20_000).request, FetchRequest)


def test_a_snapshot_that_nobody_knows_is_given_up() -> None:
    log = observer()
    fetched(log, snapshot_id=SnapshotId(end_offset=50, epoch=4))
    sent = send(log)
    log.on_snapshot(sent.number, FetchSnapshotResponse(error_code=-1), 0)
    assert isinstance(send(log, BACKOFF_MS).request, FetchRequest)


def test_another_cluster_is_named_as_such() -> None:
    log = observer()
    with pytest.raises(KafkaError, match=r"c1:9093 is of another cluster .* b25jZWxvZy1wZWVyLTAwMQ"):
        fetched(log, FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))


def test_a_record_of_the_future_stops_the_observer() -> None:
    unknown = build_batch([Record(0, 0, None, b"\x01\x63\x00\x00")], timestamp_ms=0, leader_epoch=3)
    with pytest.raises(KafkaError, match="type 99"):
        fetched(observer(), records=unknown, high_watermark=1)


def test_the_topic_id_is_kafkas() -> None:
    assert uuid_from_text("AAAAAAAAAAAAAAAAAAAAAQ") == TOPIC_ID
