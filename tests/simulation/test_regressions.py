"""Bugs that Kafka's transactions have had, and the way each would show through a whole broker.

Named after Kafka's issues. Where a bug needs a transaction that is on its way, the high watermark trails the log, as
with replicas, or a write meets a full disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.simulation import wire
from tests.simulation.conftest import FEW_PARTITIONS
from tests.simulation.history import short_epochs
from tests.simulation.network import LOST
from tests.simulation.plan import SHORT_EPOCHS
from tests.simulation.producers import JAVA_3, JAVA_4, LIBRDKAFKA, Dialect
from tests.simulation.scene import Scene, ScenicProducer
from tests.simulation.wire import Identity, Place

pytestmark = pytest.mark.simulation

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
NON_EMPTY_GROUP = 68
PRODUCER_FENCED = 90
P0: Place = ("t", 0)
P1: Place = ("t", 1)

both_protocols = pytest.mark.parametrize("dialect", [LIBRDKAFKA, JAVA_4], ids=lambda dialect: dialect.name)


def produce_code(scene: Scene, producer: ScenicProducer, message: object, place: Place = P0) -> int:
    answer = scene.ask(ApiKey.PRODUCE, producer.dialect.produce, message)
    return int(wire.produce_answers(answer)[place].error_code)


# -- KAFKA-18575, KAFKA-18654: a new transaction races the end of the last one


def _race(scene: Scene) -> tuple[ScenicProducer, list[object]]:
    """The commit is answered, its markers are on their way, and the first batch of the next transaction comes."""
    scene.create("t")
    producer = scene.producer("id")
    producer.send("t", "first")
    scene.station.lag_ms = lambda: 50
    assert producer.commit() == 0
    assert scene.state("id") == "PrepareCommit"
    return producer, scene.sends(ApiKey.PRODUCE, 12, producer.produce_message({P0: ["second"]}))


def test_kafka_18575_the_first_batch_after_a_commit_waits_for_its_completion(scene: Scene) -> None:
    producer, answers = _race(scene)
    assert answers == [], "the batch is parked, not refused"
    scene.wait(200)
    assert [wire.produce_answers(answer)[P0].error_code for answer in answers] == [0]
    producer.sequences[P0] = 1
    assert producer.commit() == 0
    scene.wait(200)
    assert scene.read("t") == ["first", "second"]


def test_kafka_18654_the_wait_takes_as_long_as_the_completion_and_no_back_off(scene: Scene) -> None:
    _, answers = _race(scene)
    # Markers, the Complete record, the partition's addition and the batch: four trips to the high watermark.
    scene.wait(4 * 50)
    assert len(answers) == 1


def test_kafka_18575_without_parking_the_client_is_told_to_come_again(memory: Path) -> None:
    with Scene(memory, {**FEW_PARTITIONS, "oncelog.parked.request.ms": "0"}).opened() as scene:
        _, answers = _race(scene)
        assert [wire.produce_answers(answer)[P0].error_code for answer in answers] == [CONCURRENT_TRANSACTIONS]


# -- KAFKA-17754: what comes late must not join another transaction


@pytest.mark.parametrize("dialect", [LIBRDKAFKA, JAVA_3], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("commit", [True, False])
def test_kafka_17754_a_batch_that_comes_after_the_end_is_refused(scene: Scene, dialect: Dialect, commit: bool) -> None:
    scene.create("t")
    producer = scene.producer("id", dialect)
    producer.send("t", "in time")
    late = producer.produce_message({P0: ["late"]})
    assert (producer.commit() if commit else producer.abort()) == 0
    refused = {INVALID_TXN_STATE, 120} if dialect is JAVA_3 else {INVALID_TXN_STATE}
    assert produce_code(scene, producer, late) in refused
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)
    assert scene.read("t") == (["in time"] if commit else [])


def test_kafka_17754_a_batch_that_was_verified_before_the_end_is_refused_after_it(scene: Scene) -> None:
    """The guard: one partition's transaction ends while the request waits for the verification of another's.

    The marker of the first partition meets a full disk, so its transaction is open when the late request arrives, and
    over when the request's turn comes.
    """
    scene.create("t", 2)
    producer = scene.producer("id", LIBRDKAFKA)
    producer.add(P0, P1)
    producer.send("t", "in time")
    late = producer.produce_message({P0: ["late"], P1: ["late"]})
    hits = iter(range(1, 100))
    scene.station.arm_disk_trouble("log.append.before_write", lambda: next(hits) == 2)
    assert producer.abort() == 0
    scene.station.disarm()
    assert scene.state("id") == "PrepareAbort"
    answers = scene.sends(ApiKey.PRODUCE, LIBRDKAFKA.produce, late)
    assert answers == []
    scene.wait(500)
    codes = {place: part.error_code for place, part in wire.produce_answers(answers[0]).items()}
    assert codes == {P0: INVALID_TXN_STATE, P1: INVALID_TXN_STATE}
    assert scene.state("id") == "CompleteAbort"
    for partition in (0, 1):
        assert scene.end_offset("t", partition) == scene.end_offset("t", partition, committed=False)
        assert scene.read("t", partition) == []


def test_kafka_17754_under_tv2_nothing_of_the_last_transaction_gets_into_the_next(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    producer.send("t", "first")
    late_batch = producer.produce_message({P0: ["late"]})
    late_end = producer.end_message(commit=False)
    old = producer.identity
    late_offsets = wire.txn_offset_commit("id", old, "group", {P0: 1})
    assert producer.commit() == 0
    assert producer.send("t", "second") == 0
    assert producer.commit_offset("group", "t", 2) == 0

    assert produce_code(scene, producer, late_batch) == INVALID_PRODUCER_EPOCH
    codes = wire.txn_offset_commit_codes(scene.ask(ApiKey.TXN_OFFSET_COMMIT, 5, late_offsets))
    assert codes == {INVALID_PRODUCER_EPOCH}
    assert scene.ask(ApiKey.END_TXN, 5, late_end).error_code == PRODUCER_FENCED

    assert scene.state("id") == "Ongoing"
    assert producer.commit() == 0
    assert scene.read("t") == ["first", "second"]
    assert scene.committed_offset("group", "t") == 2


# -- KAFKA-18202, KAFKA-18042, KAFKA-19690: sequences and epochs at the partition


def test_kafka_18202_under_tv2_the_first_batch_has_sequence_0(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    overtaking = producer.produce_message({P0: ["second"]}, {P0: 1})
    assert produce_code(scene, producer, overtaking) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send("t", "first") == 0
    producer.sequences[P0] = 1
    assert producer.send("t", "second") == 0
    assert producer.commit() == 0
    again = producer.produce_message({P0: ["third"]}, {P0: 2})
    assert produce_code(scene, producer, again) == OUT_OF_ORDER_SEQUENCE_NUMBER, "the bump starts the sequences anew"
    assert scene.read("t") == ["first", "second"]


@both_protocols
@pytest.mark.parametrize("partition", [0, 1])
def test_kafka_18042_a_stale_epoch_is_told_so_and_nothing_fatal(scene: Scene, dialect: Dialect, partition: int) -> None:
    """Whether the partition knows the newer epoch (0) or only the coordinator does (1)."""
    scene.create("t", 2)
    zombie = scene.producer("id", dialect)
    zombie.send("t", "zombie")
    stale = zombie.produce_message({("t", partition): ["stale"]})
    scene.producer("id", dialect)
    assert produce_code(scene, zombie, stale, ("t", partition)) == INVALID_PRODUCER_EPOCH


# -- KAFKA-19163: a group with offsets pending in a transaction


@both_protocols
def test_kafka_19163_a_group_with_pending_offsets_is_neither_deleted_nor_expired(
    memory: Path, dialect: Dialect
) -> None:
    settings = {
        **FEW_PARTITIONS,
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "1000",
    }
    with Scene(memory, settings).opened() as scene:
        scene.create("t")
        producer = scene.producer("id", dialect, timeout_ms=600_000)
        producer.commit_offset("group", "t", 7)
        answer = scene.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["group"]))
        assert answer.results[0].error_code == NON_EMPTY_GROUP
        scene.wait(150_000)
        assert scene.committed_offset("group", "t") is None
        assert producer.commit() == 0
        assert scene.committed_offset("group", "t") == 7


# -- KAFKA-19446 (KIP-1228), KAFKA-19999: markers that come late or twice


def test_kafka_19446_a_late_marker_does_not_end_the_next_transaction(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    producer.send("t", "first")
    producer.commit()
    marker = wire.records_in(scene.fetch("t", committed=False).records)[-1]
    assert marker.marker is not None
    producer.send("t", "second")
    assert producer.identity.epoch == marker.epoch
    code = scene.write_marker(
        "t", 0, Identity(marker.producer_id, marker.epoch), commit=True,
        coordinator_epoch=marker.marker.coordinator_epoch, version=2,
    )  # fmt: skip
    assert code == INVALID_PRODUCER_EPOCH
    assert scene.read("t") == ["first"]
    assert producer.abort() == 0
    assert scene.read("t") == ["first"]


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_19999_a_repeated_marker_is_taken_and_the_transaction_completes(scene: Scene, commit: bool) -> None:
    """The broker dies when one of two partitions has its marker. It is sent again to both."""
    scene.create("t", 2)
    producer = scene.producer("id")
    producer.send("t", "a")
    producer.send("t", "b", partition=1)
    scene.dies_at("txn.marker.before_write", 2)
    assert (producer.commit() if commit else producer.abort()) == -1
    scene.station.start()
    assert scene.state("id") == ("CompleteCommit" if commit else "CompleteAbort")
    kinds = [seen.marker.commit for seen in wire.records_in(scene.fetch("t", committed=False).records) if seen.marker]
    assert kinds == [commit, commit], "the marker is in the first partition twice"
    assert scene.read("t") + scene.read("t", 1) == (["a", "b"] if commit else [])


# -- KAFKA-18660, KAFKA-19367, KAFKA-20090, KAFKA-20310: running out of epochs


@pytest.fixture
def few_epochs() -> Iterator[None]:
    with short_epochs(True):
        yield


@pytest.mark.usefixtures("few_epochs")
def test_kafka_18660_a_producer_goes_on_over_the_end_of_its_epochs(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    ids = []
    for number in range(8):
        assert producer.identity.epoch <= SHORT_EPOCHS, "the last epoch is kept for fencing"
        ids.append(producer.identity.producer_id)
        assert producer.send("t", str(number)) == 0
        assert producer.commit() == 0
    assert len(set(ids)) == 3
    assert scene.read("t") == [str(number) for number in range(8)]


@pytest.mark.usefixtures("few_epochs")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("point", "hits"),
    [
        ("txn.record.after_append", 1),
        ("txn.record.after_apply", 1),
        ("txn.marker.before_write", 1),
        ("txn.record.before_append", 2),
        ("txn.record.after_append", 2),
    ],
)
def test_kafka_20310_a_crash_during_a_rotation_does_not_strand_the_producer(
    scene: Scene, commit: bool, point: str, hits: int
) -> None:
    scene.create("t")
    producer = scene.producer("id")
    for number in range(SHORT_EPOCHS):
        producer.send("t", str(number))
        producer.commit()
    assert producer.identity.epoch == SHORT_EPOCHS
    producer.send("t", "at the last epoch")
    scene.dies_at(point, hits)
    assert (producer.commit() if commit else producer.abort()) == -1
    scene.station.start()
    before = producer.identity
    assert (producer.commit() if commit else producer.abort()) == 0, "the retry is answered with the new identity"
    assert producer.identity.epoch == 0
    assert producer.identity.producer_id != before.producer_id
    assert producer.send("t", "after") == 0
    assert producer.commit() == 0
    expected = [*map(str, range(SHORT_EPOCHS)), *(["at the last epoch"] if commit else []), "after"]
    assert scene.read("t") == expected


@pytest.mark.usefixtures("few_epochs")
@both_protocols
def test_kafka_20090_a_time_out_at_the_last_epoch_ends_the_transaction(scene: Scene, dialect: Dialect) -> None:
    scene.create("t")
    for _ in range(SHORT_EPOCHS + 1):
        producer = scene.producer("id", dialect, timeout_ms=5_000)
    assert producer.identity.epoch == SHORT_EPOCHS
    producer.send("t", "too slow")
    scene.wait(30_000)
    assert scene.state("id") == "CompleteAbort"
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)
    successor = scene.producer("id", dialect)
    assert successor.identity.producer_id != producer.identity.producer_id
    assert successor.send("t", "in time") == 0
    assert successor.commit() == 0
    assert scene.read("t") == ["in time"]


@pytest.mark.usefixtures("few_epochs")
@both_protocols
@pytest.mark.parametrize("epoch", range(SHORT_EPOCHS + 1))
def test_kafka_19367_initialising_over_an_open_transaction_never_overflows(
    scene: Scene, dialect: Dialect, epoch: int
) -> None:
    scene.create("t")
    for _ in range(epoch + 1):
        producer = scene.producer("id", dialect)
    assert producer.identity.epoch == epoch
    producer.send("t", "open")
    successor = scene.producer("id", dialect)
    assert successor.identity.epoch <= SHORT_EPOCHS
    if epoch + 2 <= SHORT_EPOCHS:
        assert successor.identity == Identity(producer.identity.producer_id, epoch + 2)
    assert successor.send("t", "mine") == 0
    assert successor.commit() == 0
    assert scene.read("t") == ["mine"]


# -- KAFKA-20785 and what a producer sees after a time-out, by protocol


def _time_out(scene: Scene, dialect: Dialect) -> ScenicProducer:
    scene.create("t")
    producer = scene.producer("id", dialect, timeout_ms=5_000)
    producer.send("t", "too slow")
    scene.wait(30_000)
    assert scene.state("id") == "CompleteAbort"
    return producer


def test_kafka_20785_a_commit_that_lost_the_race_with_a_time_out_is_fenced(scene: Scene) -> None:
    producer = _time_out(scene, JAVA_4)
    assert producer.send("t", "more") == INVALID_PRODUCER_EPOCH
    assert producer.commit() == PRODUCER_FENCED
    assert producer.abort() == 0, "the way back of a TV2 producer"
    assert producer.send("t", "again") == 0
    assert producer.commit() == 0
    assert scene.read("t") == ["again"]


def test_an_old_client_recovers_from_a_time_out_on_a_new_broker(scene: Scene) -> None:
    producer = _time_out(scene, JAVA_3)
    before = producer.identity
    assert producer.send("t", "more") == INVALID_PRODUCER_EPOCH
    assert producer.commit() == PRODUCER_FENCED
    assert producer.abort() == PRODUCER_FENCED
    assert producer.init(expected=before) == 0
    assert producer.identity == Identity(before.producer_id, before.epoch + 1)
    assert producer.send("t", "again") == 0
    assert producer.commit() == 0
    assert scene.read("t") == ["again"]


@pytest.mark.parametrize("version", ["0", "1"])
def test_an_old_client_does_not_recover_from_a_time_out_on_an_old_broker(memory: Path, version: str) -> None:
    with Scene(memory, {**FEW_PARTITIONS, "transaction.version": version}).opened() as scene:
        producer = _time_out(scene, JAVA_3)
        assert producer.send("t", "more") == INVALID_PRODUCER_EPOCH
        assert producer.commit() == PRODUCER_FENCED
        assert producer.init(expected=producer.identity) == PRODUCER_FENCED
        assert scene.read("t") == []


# -- KAFKA-18401: transactions without records


def test_kafka_18401_an_empty_tv2_transaction_can_be_aborted_but_has_nothing_to_commit(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    assert producer.commit() == INVALID_TXN_STATE
    before = producer.identity
    assert producer.abort() == 0
    assert producer.identity == Identity(before.producer_id, before.epoch + 1)
    assert producer.send("t", "a") == 0
    assert producer.commit() == 0
    assert producer.abort() == 0
    assert scene.read("t") == ["a"]


# -- offsets that outlive their topic


def test_an_offset_is_not_taken_for_one_of_the_topic_that_was_made_again(scene: Scene) -> None:
    """The broker dies when the topic is deleted and its offsets are not yet."""
    scene.create("t")
    producer = scene.producer("id")
    assert producer.commit_offset("group", "t", 7) == 0
    assert producer.commit() == 0
    assert scene.committed_offset("group", "t") == 7
    scene.dies_at("group.record.before_append")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1_000)
    assert scene.ask(ApiKey.DELETE_TOPICS, 6, request) is LOST
    scene.station.start()
    scene.create("t")
    assert scene.committed_offset("group", "t") == -1


# -- a clock that is set back


def _join(scene: Scene, member_id: str) -> list[Any]:
    request = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="split", metadata=b"")],
    )
    return scene.sends(ApiKey.JOIN_GROUP, 5, request)


def test_a_rebalance_does_not_take_longer_because_the_clock_is_set_back(scene: Scene) -> None:
    """It waits for a member that is gone; and would for as much longer as the clock was set back."""
    _join(scene, "")
    scene.wait(100)  # until there is a coordinator
    gone = _join(scene, _join(scene, "")[0].member_id)
    scene.wait(3_000)
    assert gone[0].error_code == 0
    answers = _join(scene, _join(scene, "")[0].member_id)
    scene.wait(2_000)
    assert answers == []
    scene.station.skew_ms = -1_500_000
    scene.wait(20_000)
    assert [answer.error_code for answer in answers] == [0]


def test_a_transaction_times_out_although_the_clock_is_set_back(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id", timeout_ms=20_000)
    assert producer.send("t", "held back") == 0
    scene.wait(5_000)
    scene.station.skew_ms = -1_500_000
    scene.wait(40_000)
    assert scene.state("id") == "CompleteAbort"
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)


def test_a_transaction_times_out_although_the_broker_starts_while_the_clock_is_behind(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id", timeout_ms=20_000)
    assert producer.send("t", "held back") == 0
    scene.wait(1_000)
    scene.station.skew_ms = -1_500_000
    scene.restart()
    scene.wait(500)
    scene.station.skew_ms = 0
    scene.wait(40_000)
    assert scene.state("id") == "CompleteAbort"
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)


def test_topics_are_compacted_although_the_clock_is_set_back(memory: Path) -> None:
    settings = {**FEW_PARTITIONS, "log.cleaner.backoff.ms": "1000"}
    with Scene(memory, settings).opened() as scene:
        scene.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", internal_segment_bytes="300")
        producer = scene.producer("id")
        scene.wait(5_000)
        scene.station.skew_ms = -1_500_000
        for number in range(10):
            assert producer.send("t", str(number), key="key") == 0
            assert producer.commit() == 0
        scene.wait(10_000)
        assert len(scene.read("t")) < 4
