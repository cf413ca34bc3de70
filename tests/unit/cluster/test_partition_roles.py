"""A partition as leader, as follower and as neither: what it takes, what is committed, and who is told what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.cluster.partition import EndOfLog, Partition
from oncelog.cluster.partition_state import PartitionState, Role
from oncelog.cluster.replica_fetch import Fetcher, answer_replica
from oncelog.cluster.replicas import ReplicaFetch, ReplicaRules
from oncelog.controller.partition_image import MIGRATING_DIRECTORY, PartitionImage
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.core.invariant import InvariantError
from oncelog.protocol.messages.fetch import FetchPartition, PartitionData
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from tests.unit.cluster.test_replicas import Broker, ids
from tests.unit.storage.log_harness import NOW_MS, append, append_txn, batch, new_log, read_all, reopen

OWN = NodeId(1)
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200, min_insync_replicas=2)


def state(
    leader: int, epoch: int = 1, *, in_sync: tuple[int, ...] = (1, 2, 3), partition_epoch: int | None = None
) -> PartitionState:
    return PartitionState(
        NodeId(leader),
        LeaderEpoch(epoch),
        ids(1, 2, 3),
        ids(*in_sync),
        epoch if partition_epoch is None else partition_epoch,
    )


class OnDisk:
    """A policy as that of `oncelog.acks.fsync`; the test flushes."""

    asked = 0

    def stored_end(self, log: Log) -> int:
        return log.durable_offset

    def on_append(self, partition: Partition) -> None:
        self.asked += 1
        partition.update_high_watermark()


def new_partition(
    tmp_path: Path, first: PartitionState, *, policy: EndOfLog | OnDisk | None = None, records: int = 0, **fields: int
) -> Partition:
    log = new_log(tmp_path, CONFIG)
    for _ in range(records):
        append(log)
    rules = ReplicaRules(lambda broker: Broker(broker * 10))
    return Partition(log, first, OWN, policy or EndOfLog(), rules=rules, **fields)


def produce(partition: Partition, count: int = 1, *, acks: int = -1) -> int:
    return partition.append_as_leader(batch(count), now_ms=NOW_MS, required_acks=acks).last_offset


def fetch(partition: Partition, broker: int, offset: int) -> None:
    partition.on_replica_fetch(NodeId(broker), ReplicaFetch(offset, 0, broker * 10), 0)


def code_of(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        act()
    return raised.value.code


@pytest.mark.parametrize(
    ("leader", "replicas", "role"),
    [(1, (1, 2), Role.LEADER), (2, (1, 2), Role.FOLLOWER), (-1, (1, 2), Role.FOLLOWER), (2, (2, 3), Role.NONE)],
)
def test_the_role_is_what_the_metadata_says(leader: int, replicas: tuple[int, ...], role: Role) -> None:
    image = PartitionImage(
        replicas=ids(*replicas), directories=(MIGRATING_DIRECTORY,) * 2, isr=ids(2), removing_replicas=(),
        adding_replicas=(), elr=(), last_known_elr=(), leader=NodeId(leader), is_recovering=False,
        leader_epoch=LeaderEpoch(7), partition_epoch=9,
    )  # fmt: skip
    found = PartitionState.from_image(image)
    assert found == PartitionState(NodeId(leader), LeaderEpoch(7), ids(*replicas), ids(2), 9)
    assert found.role_of(OWN) is role


# What is committed


def test_an_append_is_committed_when_all_in_sync_have_it(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1))
    promise = partition.committed(produce(partition))
    fetch(partition, 2, 1)
    assert (partition.high_watermark, promise.done) == (0, False)
    fetch(partition, 3, 1)
    assert (partition.high_watermark, promise.value) == (1, None)


def test_below_the_minimum_acks_all_is_refused_and_acks_1_is_invisible(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1, in_sync=(1,)))
    assert code_of(lambda: produce(partition)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    produce(partition, acks=1)
    fetch(partition, 2, 1)
    assert partition.high_watermark == 0
    partition.become(state(1, in_sync=(1, 2), partition_epoch=2), 0)
    assert partition.high_watermark == 1


def test_an_isr_that_sinks_below_the_minimum_commits_nothing_more(tmp_path: Path) -> None:
    """KAFKA-15583."""
    partition = new_partition(tmp_path, state(1))
    first = produce(partition)
    for broker in (2, 3):
        fetch(partition, broker, 1)
    second = partition.committed(produce(partition))
    partition.become(state(1, in_sync=(1,), partition_epoch=2), 0)
    assert not second.done
    late = partition.committed(first).value
    assert late is not None
    assert late.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    partition.log.reconfigure(replace(CONFIG, min_insync_replicas=1))
    partition.update_high_watermark()
    assert not second.done, "the others could join again at any moment"
    assert partition.replicas is not None
    partition.replicas.tick(30_001)
    partition.update_high_watermark()
    assert second.value is None


def test_the_own_log_counts_up_to_what_is_on_disk(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1), policy=OnDisk())
    promise = partition.committed(produce(partition))
    for broker in (2, 3):
        fetch(partition, broker, 1)
    assert not promise.done
    partition.log.flush()
    partition.update_high_watermark()
    assert promise.value is None


def test_followers_that_wait_are_woken_by_an_append_that_is_not_committed(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1))
    woken: list[int] = []
    partition.watch(1, lambda: woken.append(partition.log.log_end_offset))
    produce(partition)
    assert woken == [1]


# Elections


@pytest.mark.parametrize(
    ("checkpointed", "expected"), [(0, 0), (3, 3), (9, 5)], ids=["none", "as written down", "never beyond the end"]
)
def test_the_high_watermark_of_a_replica_at_its_start(tmp_path: Path, checkpointed: int, expected: int) -> None:
    partition = new_partition(tmp_path, state(2), records=5, checkpointed=checkpointed)
    assert partition.high_watermark == partition.log.producer_state.high_watermark == expected


def test_the_high_watermark_of_a_replica_is_not_below_the_start_of_its_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, CONFIG)
    append(log, count=5, epoch=0)
    log.delete_records(3)
    assert Partition(log, state(2), OWN, EndOfLog(), checkpointed=1).high_watermark == 3


def test_one_replica_has_committed_all_that_it_has(tmp_path: Path) -> None:
    alone = PartitionState(OWN, LeaderEpoch(1), ids(1), ids(1))
    assert new_partition(tmp_path, alone, records=5, checkpointed=2).high_watermark == 5


def test_a_new_leader_commits_what_followers_have_told_it_itself(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(2), records=5, checkpointed=2)
    partition.become(state(1, 2), 0)
    assert partition.log.leader_epochs.entries == [(0, 0), (2, 5)]
    assert partition.high_watermark == 2
    for broker in (2, 3):
        fetch(partition, broker, 4)
    assert partition.high_watermark == 4
    partition.become(state(1, 3), 0)
    produce(partition)
    fetch(partition, 2, 6)
    assert partition.high_watermark == 4, "what broker 3 said in another epoch does not count"


def test_metadata_of_the_same_epoch_does_not_forget_followers(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1))
    produce(partition)
    fetch(partition, 2, 1)
    partition.become(state(1, in_sync=(1, 2), partition_epoch=2), 0)
    assert partition.high_watermark == 1


def test_who_waits_is_told_when_the_leadership_is_lost(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1))
    offset = produce(partition)
    promise = partition.committed(offset)
    woken: list[bool] = []
    partition.watch(1, lambda: woken.append(partition.is_leader))
    partition.become(state(2, 2), 0)
    assert (promise.value and promise.value.code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert woken == [False]
    assert code_of(lambda: produce(partition)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(lambda: fetch(partition, 2, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.follow_leader(1, 0)
    later = partition.committed(offset).value
    assert later is not None, "what the new leader has committed there may be another record"
    assert later.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_cannot_note_its_epoch_does_not_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = new_partition(tmp_path, state(2))

    def fail(leader_epoch: int) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(partition.log, "begin_epoch", fail)
    assert code_of(lambda: partition.become(state(1, 2), 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (partition.role, partition.leader_epoch) == (Role.FOLLOWER, 1)


def test_a_leader_epoch_never_goes_back(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1, 5))
    with pytest.raises(InvariantError):
        partition.become(state(2, 4), 0)


# As a follower


def test_a_follower_commits_what_its_leader_says_and_what_it_has(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(2))
    (tmp_path / "leader").mkdir()
    leader = new_log(tmp_path / "leader")
    append_txn(leader, 5)
    append(leader, count=3, epoch=1)
    partition.append_as_follower(read_all(leader), 1, NOW_MS)
    for told, start, expected in [(2, 0, (2, 0, 0)), (9, 2, (4, 2, 2)), (1, 1, (4, 2, 2))]:
        partition.follow_leader(told, start)
        found = (partition.high_watermark, partition.log_start_offset, partition.last_stable_offset)
        assert found == expected
    assert (partition.last_epoch, partition.is_flushed, partition.is_broken) == (1, True, False)


def test_a_cut_lowers_the_high_watermark(tmp_path: Path) -> None:
    """Only after an unclean election is there anything to lower."""
    partition = new_partition(tmp_path, state(2), records=5, checkpointed=5)
    partition.truncate_to(3, NOW_MS)
    assert partition.high_watermark == partition.log.producer_state.high_watermark == 3
    partition.start_over_at(9, NOW_MS)
    assert (partition.high_watermark, partition.log_start_offset, partition.log_end_offset) == (9, 9, 9)


def test_a_leader_does_not_follow(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(1), records=2)
    for act in (
        lambda: partition.truncate_to(0, NOW_MS),
        lambda: partition.append_as_follower(batch(), 1, NOW_MS),
        lambda: partition.follow_leader(1, 0),
        lambda: partition.start_over_at(9, NOW_MS),
    ):
        with pytest.raises(InvariantError):
            act()


def test_a_follower_acknowledges_what_is_on_disk(tmp_path: Path) -> None:
    partition = new_partition(tmp_path, state(2), policy=OnDisk(), records=1)
    assert not partition.is_flushed
    partition.log.flush()
    assert partition.is_flushed


@pytest.mark.parametrize("leader", [1, 2])
def test_what_was_found_after_a_crash_is_flushed(tmp_path: Path, leader: int) -> None:
    """It may have been in the page cache only, and until it is on disk a follower does not fetch."""
    policy = OnDisk()
    partition = new_partition(tmp_path, state(leader), policy=policy, records=2, checkpointed=2)
    assert (partition.high_watermark, policy.asked) == (2, 1)


# What a leader answers to followers


def answer(
    partition: Partition, offset: int, *, epoch: int = 5, last_epoch: int = -1, broker: int = 2, **fields: bool
) -> PartitionData:
    wanted = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    fetcher = Fetcher(NodeId(broker), broker * 10)
    return answer_replica(partition, wanted, fetcher, now_ms=0, max_bytes=1 << 20, **fields)


def leading(tmp_path: Path) -> Partition:
    """Epoch 0 up to offset 3, epoch 2 up to 5, epoch 5 up to 6; broker 3 has everything."""
    log = new_log(tmp_path, CONFIG)
    append(log, count=3, epoch=0)
    append(log, count=2, epoch=2)
    rules = ReplicaRules(lambda broker: Broker(broker * 10))
    partition = Partition(log, state(1, 5), OWN, EndOfLog(), rules=rules)
    produce(partition)
    fetch(partition, 3, 6)
    return partition


def test_a_follower_reads_to_the_end_and_moves_the_high_watermark(tmp_path: Path) -> None:
    partition = leading(tmp_path)
    data = answer(partition, 3, last_epoch=0)
    assert data.records == read_all(partition.log, start=3)
    assert (data.high_watermark, data.log_start_offset, data.aborted_transactions) == (3, 0, None)
    data = answer(partition, 6, last_epoch=5)
    assert (bytes(data.records or b""), data.high_watermark) == (b"", 6)


def test_a_repetition_acknowledges_nothing(tmp_path: Path) -> None:
    partition = leading(tmp_path)
    assert answer(partition, 6, last_epoch=5, is_repetition=True).high_watermark == 0


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [(4, 0, (0, 3)), (6, 2, (2, 5)), (5, 4, (2, 5)), (9, 5, (5, 6)), (3, 1, (0, 3))],
)
def test_a_follower_that_diverges_acknowledges_nothing(
    tmp_path: Path, offset: int, last_epoch: int, expected: tuple[int, int]
) -> None:
    partition = leading(tmp_path)
    data = answer(partition, offset, last_epoch=last_epoch)
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == expected
    assert not data.records
    assert partition.replicas is not None
    assert partition.replicas.followers[NodeId(2)].end_offset == -1


@pytest.mark.parametrize(
    ("offset", "epoch", "broker", "code"),
    [
        (0, 4, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, 6, 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, 5, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (7, 5, 2, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, 5, 2, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
    ids=["an older epoch", "a newer epoch", "no replica", "beyond the end", "below the start"],
)
def test_what_a_leader_refuses_followers(tmp_path: Path, offset: int, epoch: int, broker: int, code: ErrorCode) -> None:
    partition = leading(tmp_path)
    fetch(partition, 2, 6)
    partition.log.delete_records(3)
    assert code_of(lambda: answer(partition, offset, epoch=epoch, broker=broker)) is code
    assert partition.replicas is not None
    assert partition.replicas.followers[NodeId(2)].end_offset == 6, "what is refused acknowledges nothing"


def test_a_follower_below_the_start_is_told_so_before_anything_else(tmp_path: Path) -> None:
    """Where it diverges cannot be told any more."""
    partition = leading(tmp_path)
    fetch(partition, 2, 6)
    partition.log.delete_records(3)
    assert code_of(lambda: answer(partition, 2, last_epoch=1)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_is_not_asked(tmp_path: Path) -> None:
    partition = leading(tmp_path)
    partition.become(state(2, 6), 0)
    assert code_of(lambda: answer(partition, 0, epoch=6)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("leader", "epoch", "is_told"), [(1, 1, True), (2, 1, True), (1, 2, False), (2, 3, False)])
def test_a_log_that_is_newer_than_the_metadata_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, leader: int, epoch: int, is_told: bool
) -> None:
    """As after a restore of an older copy of the controllers' log."""
    partition = new_partition(tmp_path, state(1, 2))
    produce(partition)
    rules = ReplicaRules(lambda broker: Broker(broker * 10))
    again = Partition(reopen(partition.log), state(leader, epoch), OWN, EndOfLog(), rules=rules)
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert [
        f"{again.topic_partition}: this log has leader epoch 2, and the metadata {epoch}" in text for text in told
    ] == ([True] if is_told else [])
