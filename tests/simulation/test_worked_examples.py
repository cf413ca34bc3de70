"""The examples by which people learn how transactions work, replayed on a whole broker over wire frames.

Each is run in the old protocol (librdkafka) and the new one (Java 4) where the two can differ.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.hashing import java_string_hash
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.simulation import wire
from tests.simulation.conftest import FEW_PARTITIONS
from tests.simulation.history import History
from tests.simulation.log_audit import audit, read_log
from tests.simulation.network import LOST
from tests.simulation.plan import Plan
from tests.simulation.producers import JAVA_4, LIBRDKAFKA, Dialect
from tests.simulation.scene import Scene
from tests.simulation.wire import Identity

pytestmark = pytest.mark.simulation

OFFSET_OUT_OF_RANGE = 1
FENCED = 90
INVALID_PRODUCER_EPOCH = 47
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
FENCED_CODES = {FENCED, INVALID_PRODUCER_EPOCH}

both_protocols = pytest.mark.parametrize("dialect", [LIBRDKAFKA, JAVA_4], ids=lambda dialect: dialect.name)


# -- 1. two producers, one id


@pytest.mark.parametrize(
    ("transactional_id", "hashed", "partition"),
    [("first-transactional", 1476685612, 12), ("test-transactional-matt", -1260157965, 15)],
)
@both_protocols
def test_two_producers_one_id(
    memory: Path, transactional_id: str, hashed: int, partition: int, dialect: Dialect
) -> None:
    with Scene(memory).opened() as scene:
        assert java_string_hash(transactional_id) == hashed
        scene.create("t", 2)
        first = scene.producer(transactional_id, dialect)
        assert first.send("t", "committed") == 0
        assert first.commit() == 0
        assert first.send("t", "open") == 0
        assert first.send("t", "open too", partition=1) == 0
        before = first.identity

        second = scene.producer(transactional_id, dialect)

        assert second.identity == Identity(before.producer_id, before.epoch + 2), "one to abort, one for the caller"
        assert scene.describe(transactional_id).producer_epoch == second.identity.epoch
        assert first.send("t", "zombie") in FENCED_CODES
        assert first.commit() in FENCED_CODES
        assert second.send("t", "second") == 0
        assert second.commit() == 0
        assert scene.read("t") == ["committed", "second"]
        assert scene.read("t", 1) == []
        scene.station.stop()
        folder = memory / f"__transaction_state-{partition}"
        assert len(list(read_log(folder))) > 0, "the id's decisions are in the partition its hash says"
        assert audit(memory).last_states == {transactional_id: 4}


@both_protocols
def test_a_new_instance_moves_the_epoch_by_one_when_nothing_is_open(scene: Scene, dialect: Dialect) -> None:
    scene.create("t")
    first = scene.producer("id", dialect)
    first.send("t", "a")
    first.commit()
    second = scene.producer("id", dialect)
    assert second.identity == Identity(first.identity.producer_id, first.identity.epoch + 1)


# -- 2. the filter


@both_protocols
def test_the_filter(scene: Scene, dialect: Dialect) -> None:
    scene.create("t")
    a, b = scene.producer("A", dialect), scene.producer("B", dialect)
    a.send("t", "batch 0 of A")
    b.send("t", "batch 1 of B")
    a.abort()
    a.send("t", "batch 3 of A")
    b.abort()
    b.send("t", "batch 5 of B")
    a.commit()
    b.commit()

    part = scene.fetch("t")
    batches = wire.records_in(part.records)
    assert [record.value for record in batches[:6]] == [
        "batch 0 of A", "batch 1 of B", None, "batch 3 of A", None, "batch 5 of B",
    ]  # fmt: skip
    assert [record.marker is not None and not record.marker.commit for record in batches[:6]] == [
        False, False, True, False, True, False,
    ]  # fmt: skip
    aborted = {(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions}
    assert aborted == {(a.identity.producer_id, 0), (b.identity.producer_id, 1)}
    assert scene.read("t") == ["batch 3 of A", "batch 5 of B"]


# -- 3. the long transaction


@both_protocols
def test_the_long_transaction(scene: Scene, dialect: Dialect) -> None:
    scene.create("t")
    assert scene.plain("t", *[str(offset) for offset in range(1000)]) == 0
    long, other = scene.producer("long", dialect), scene.producer("other", dialect)
    long.send("t", "1000")
    scene.plain("t", *[str(offset) for offset in range(1001, 1100)])
    other.send("t", *[str(offset) for offset in range(1100, 1200)])
    other.commit()
    scene.plain("t", *[str(offset) for offset in range(1201, 1400)])
    other.send("t", *[str(offset) for offset in range(1400, 1500)])
    other.commit()

    assert scene.end_offset("t") == 1000
    assert scene.end_offset("t", committed=False) == 1501
    assert scene.read("t", start=1000) == []
    assert len(scene.read("t", start=1000, committed=False)) == 500 - 1, "all but the marker at 1200"
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    producers = scene.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics[0].partitions[0].active_producers
    culprit = min((entry for entry in producers if entry.current_txn_start_offset >= 0), key=_start)
    assert (culprit.producer_id, culprit.current_txn_start_offset) == (long.identity.producer_id, 1000)

    long.commit()

    offsets = [record.offset for record in scene.read_records("t", start=1000)]
    assert offsets == [offset for offset in range(1000, 1500) if offset != 1200]
    assert scene.end_offset("t") == scene.end_offset("t", committed=False) == 1502


def _start(entry: object) -> int:
    return int(entry.current_txn_start_offset)  # type: ignore[attr-defined]


# -- 4. the coordinator dies


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
def test_the_coordinator_dies_with_a_transaction_open_and_its_producer_goes_on(
    scene: Scene, dialect: Dialect, commit: bool
) -> None:
    scene.create("t", 2)
    producer = scene.producer("id", dialect)
    producer.send("t", "before")
    producer.commit_offset("group", "t", 5)
    scene.crash()
    assert scene.state("id") == "Ongoing"
    assert scene.read("t") == []
    assert producer.send("t", "after") == 0
    assert producer.send("t", "after", partition=1) == 0
    assert (producer.commit() if commit else producer.abort()) == 0
    assert scene.read("t") == (["before", "after"] if commit else [])
    assert scene.read("t", 1) == (["after"] if commit else [])
    assert scene.committed_offset("group", "t") == (5 if commit else -1)


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("point", "hits"),
    [
        ("txn.record.after_append", 1),
        ("txn.record.after_apply", 1),
        ("txn.marker.before_write", 1),
        ("txn.marker.before_write", 2),
        ("txn.marker.before_write", 3),
        ("log.append.after_write", 2),
        ("log.append.after_write", 3),
        ("txn.record.before_append", 2),
        ("txn.record.after_append", 2),
        ("txn.record.after_apply", 2),
    ],
)
def test_the_coordinator_dies_after_the_decision_and_it_ends_as_logged(
    scene: Scene, dialect: Dialect, commit: bool, point: str, hits: int
) -> None:
    """Between Prepare and Complete, over two partitions and a group: without any help of the producer."""
    scene.create("t", 2)
    producer = scene.producer("id", dialect)
    producer.send("t", "a")
    producer.send("t", "b", partition=1)
    producer.commit_offset("group", "t", 5)
    scene.dies_at(point, hits)
    producer.commit() if commit else producer.abort()
    assert scene.station.broker is None, "the broker never came to the failpoint"
    scene.station.start()
    assert scene.state("id") == ("CompleteCommit" if commit else "CompleteAbort")
    assert scene.read("t") == (["a"] if commit else [])
    assert scene.read("t", 1) == (["b"] if commit else [])
    assert scene.committed_offset("group", "t") == (5 if commit else -1)
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)
    assert (producer.commit() if commit else producer.abort()) == 0, "the retry of a lost answer"
    assert producer.send("t", "next") == 0
    assert producer.commit() == 0
    assert scene.read("t") == [*(["a"] if commit else []), "next"]


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
def test_the_coordinator_dies_before_the_decision_and_the_retry_decides(
    scene: Scene, dialect: Dialect, commit: bool
) -> None:
    scene.create("t")
    producer = scene.producer("id", dialect)
    producer.send("t", "a")
    scene.dies_at("txn.record.before_append")
    assert producer.commit() == -1
    scene.station.start()
    assert scene.state("id") == "Ongoing"
    assert (producer.commit() if commit else producer.abort()) == 0
    assert scene.read("t") == (["a"] if commit else [])


@both_protocols
def test_the_coordinator_dies_and_nobody_comes_back(scene: Scene, dialect: Dialect) -> None:
    """Then the time-out decides, counted from the begin of the transaction and not from the restart."""
    scene.create("t")
    producer = scene.producer("id", dialect, timeout_ms=20_000)
    producer.send("t", "a")
    scene.wait(15_000)
    scene.crash()
    scene.wait(4_000)
    assert scene.state("id") == "Ongoing"
    scene.wait(12_000)
    assert scene.state("id") == "CompleteAbort"
    assert scene.read("t") == []
    assert scene.end_offset("t") == scene.end_offset("t", committed=False)


# -- 5. the limits of a reader's view


def _commit_on_two_partitions(scene: Scene, *names: str) -> None:
    producer = scene.producer("id")
    for name in names:
        producer.send("t", f"{name} on 0")
        producer.send("t", f"{name} on 1", partition=1)
        producer.commit()


def test_a_reader_that_seeks_past_a_record_misses_it(scene: Scene) -> None:
    scene.create("t", 2)
    _commit_on_two_partitions(scene, "first", "second")
    assert scene.read("t", start=1) == ["second on 0"]
    assert scene.read("t", 1) == ["first on 1", "second on 1"]


def test_a_reader_that_is_not_assigned_all_partitions_sees_a_part(scene: Scene) -> None:
    scene.create("t", 2)
    _commit_on_two_partitions(scene, "first")
    assert scene.read("t", 1) == ["first on 1"]


def test_deleted_records_are_missing_from_their_transaction(scene: Scene) -> None:
    scene.create("t", 2)
    _commit_on_two_partitions(scene, "first", "second")
    partition = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=1000)
    assert scene.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0].error_code == 0
    assert scene.read("t", start=2) == ["second on 0"]
    assert scene.read("t", 1) == ["first on 1", "second on 1"]


def test_deleted_segments_are_missing_from_their_transaction(memory: Path) -> None:
    settings = {**FEW_PARTITIONS, "log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "0"}
    with Scene(memory, settings).opened() as scene:
        scene.create("t", 2, retention_ms="60000", segment_ms="1000")
        _commit_on_two_partitions(scene, "old")
        scene.wait(50_000)
        producer = scene.producer("id")
        producer.send("t", "new on 1", partition=1)
        producer.commit()
        scene.wait(20_000)
        assert scene.fetch("t", 1, start=0).error_code == OFFSET_OUT_OF_RANGE
        assert scene.read("t", 1, start=scene.start_offset("t", 1)) == ["new on 1"]


def test_compaction_removes_records_of_a_transaction(memory: Path) -> None:
    settings = {**FEW_PARTITIONS, "log.cleaner.backoff.ms": "1000", "log.cleaner.min.cleanable.ratio": "0.01"}
    with Scene(memory, settings).opened() as scene:
        scene.create("compacted", cleanup_policy="compact", segment_ms="1000")
        scene.create("kept")
        producer = scene.producer("id")
        for value in ("old", "new", "last"):
            assert producer.send("compacted", value, key="another" if value == "last" else "key") == 0
            assert producer.send("kept", value) == 0
            assert producer.commit() == 0
            scene.wait(5_000)
        scene.wait(60_000)
        assert scene.read("compacted") == ["new", "last"]
        assert scene.read("kept") == ["old", "new", "last"]


# -- 6. interleaved


@both_protocols
def test_interleaved_transactions_are_delivered_in_offset_order(scene: Scene, dialect: Dialect) -> None:
    scene.create("t")
    t1, t2 = scene.producer("T1", dialect), scene.producer("T2", dialect)
    t1.send("t", "T1-M1")
    t2.send("t", "T2-M1")
    t1.send("t", "T1-M2")
    scene.plain("t", "M1")
    t2.commit()
    assert scene.read("t") == []
    assert scene.read("t", committed=False) == ["T1-M1", "T2-M1", "T1-M2", "M1"]
    t1.commit()
    assert scene.read("t") == ["T1-M1", "T2-M1", "T1-M2", "M1"]


# -- 7. consume, transform, produce


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_every_input_leads_to_one_output_with_two_instances_of_which_some_are_killed(
    memory: Path, transaction_version: int, seed: int
) -> None:
    """Offsets are sent in the transaction; instances die in the middle of theirs. The history checks the rest."""
    plan = Plan(
        transaction_version=transaction_version,
        ids=0,
        contenders=0,
        workers=2,
        client_kills=3,
        pauses=100,
        txn_timeout_ms=10_000,
    )
    history = History(seed, memory, plan)
    history.play()
    outputs = [record.value or "" for records in history.final_view.values() for record in records]
    inputs = sorted(value.partition("<")[2].rstrip(">") for value in outputs)
    assert inputs == sorted(set(inputs))
    assert len(inputs) >= 6


# -- 8. delivery levels


def _deliver(scene: Scene, level: str, *, dies: bool, start: int) -> None:
    """One run over five inputs; the first instance dies between its two steps for the third input."""
    producer = scene.producer("job") if level == "exactly-once" else None
    for number in range(start, 5):
        dies_here = dies and number == 2
        if level == "at-most-once":
            _commit_plainly(scene, number + 1)
            if dies_here:
                return
            scene.plain("out", f"output {number}")
        elif level == "at-least-once":
            scene.plain("out", f"output {number}")
            if dies_here:
                return
            _commit_plainly(scene, number + 1)
        else:
            assert producer is not None
            assert producer.send("out", f"output {number}") == 0
            assert producer.commit_offset("job", "in", number + 1) == 0
            if dies_here:
                return
            assert producer.commit() == 0


def _commit_plainly(scene: Scene, offset: int) -> None:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="in", partitions=[part])
    request = OffsetCommitRequest(group_id="job", generation_id_or_member_epoch=-1, member_id="", topics=[topic])
    assert scene.ask(ApiKey.OFFSET_COMMIT, 7, request).topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("level", "times_seen"),
    [("at-most-once", 0), ("at-least-once", 2), ("exactly-once", 1)],
)
def test_delivery_levels_of_the_same_run_killed_in_the_middle(scene: Scene, level: str, times_seen: int) -> None:
    scene.create("in")
    scene.create("out")
    _deliver(scene, level, dies=True, start=0)
    if level == "exactly-once":
        # The successor's initialisation aborts what was left open, which is what makes the offset final.
        scene.producer("job")
    resumed = scene.committed_offset("job", "in")
    assert resumed is not None
    _deliver(scene, level, dies=False, start=max(0, resumed))
    outputs = scene.read("out")
    assert outputs.count("output 2") == times_seen
    for number in (0, 1, 3, 4):
        assert outputs.count(f"output {number}") == 1


# -- 9. idempotence


def test_a_plain_producer_that_repeats_doubles_and_an_idempotent_one_does_not(scene: Scene) -> None:
    scene.create("t")
    scene.plain("t", "plain")
    scene.plain("t", "plain")
    answer = scene.ask(
        ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    )
    identity = Identity(answer.producer_id, answer.producer_epoch)
    offsets = [_produce_idempotently(scene, identity, 0, "once") for _ in range(3)]
    assert offsets == [(0, 2), (0, 2), (0, 2)], "a repetition is answered with the offset of the original"
    assert scene.read("t") == ["plain", "plain", "once"]


def _produce_idempotently(scene: Scene, identity: Identity, sequence: int, value: str) -> tuple[int, int]:
    data = wire.batch([value], identity, sequence, transactional=False, timestamp_ms=1)
    part = wire.produce_answers(scene.ask(ApiKey.PRODUCE, 12, wire.produce({("t", 0): data})))["t", 0]
    return part.error_code, part.base_offset


def test_one_of_the_last_five_batches_is_known_an_older_one_and_a_gap_are_out_of_order(scene: Scene) -> None:
    scene.create("t")
    answer = scene.ask(
        ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    )
    identity = Identity(answer.producer_id, answer.producer_epoch)
    for sequence in range(7):
        assert _produce_idempotently(scene, identity, sequence, str(sequence)) == (0, sequence)
    for sequence in range(2, 7):
        assert _produce_idempotently(scene, identity, sequence, str(sequence)) == (0, sequence)
    assert _produce_idempotently(scene, identity, 1, "1")[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _produce_idempotently(scene, identity, 9, "9")[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert scene.read("t") == [str(number) for number in range(7)]


def test_every_idempotent_producer_gets_an_id_of_its_own_also_after_a_crash(scene: Scene) -> None:
    ids = []
    for _ in range(3):
        for _ in range(5):
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            ids.append(scene.ask(ApiKey.INIT_PRODUCER_ID, 4, request).producer_id)
        scene.crash()
    assert len(set(ids)) == 15


def test_a_transactional_batch_needs_a_transactional_id(scene: Scene) -> None:
    scene.create("t")
    producer = scene.producer("id")
    message = producer.produce_message({("t", 0): ["a"]})
    message.transactional_id = None
    answer = scene.ask(ApiKey.PRODUCE, 12, message)
    assert wire.produce_answers(answer)["t", 0].error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert answer is not LOST
    assert scene.read("t", committed=False) == []
