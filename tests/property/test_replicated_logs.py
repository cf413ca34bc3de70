"""Two replicas of a partition: whatever one follows and is cut off again, it knows what its leader knows.

Each replica leads in turn, and writes records and transactions that the other may get or not. When the leadership
changes, the new follower is cut as a follower of Kafka is (`cluster.follower.meeting_point`), and then gets the rest.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oncelog.cluster.follower import meeting_point
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import build_control_batch
from oncelog.storage.log import Log, LogPlace, Origin
from oncelog.storage.log_config import LogConfig
from tests.unit.storage.log_harness import NOW_MS, append, append_txn, batch, new_log, read_all

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120)
PARTITION = TopicPartition("orders", 0)
IDEMPOTENT_PIDS = (1, 2)
TXN_PIDS = (11, 12)


class Replica:
    """The log as a follower, with the names that `meeting_point` uses."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.log = new_log(folder, CONFIG, PARTITION)

    def restart(self, *, clean: bool) -> None:
        self.log.close(clean=clean)
        high_watermark = self.log.producer_state.high_watermark
        self.log = Log(
            LogPlace(self.log.folder, PARTITION, NOW_MS),
            CONFIG,
            clean=clean,
            log_start_offset=self.log.log_start_offset,
            recovery_point=self.log.recovery_point,
        )
        self.log.producer_state.on_high_watermark(min(high_watermark, self.log.log_end_offset))

    def follow(self, leader: Replica, epoch: int, max_bytes: int) -> bool:
        """One fetch and its answer. Returns whether anything was left to do."""
        log, source = self.log, leader.log
        last_epoch = log.leader_epochs.latest_epoch
        diverging = source.divergence(last_epoch, log.log_end_offset) if last_epoch >= 0 else None
        if diverging is not None:
            log.truncate_to(meeting_point(diverging, log), now_ms=NOW_MS)
            return True
        if log.log_end_offset == source.log_end_offset:
            return False
        found = source.read(log.log_end_offset, max_bytes, end_offset=source.log_end_offset)
        log.append_as_follower(found.data, leader_epoch=epoch, now_ms=NOW_MS)
        return True

    def knows(self) -> object:
        """What a leader and its follower must agree on at the same end. Times of appends are their own."""
        state = self.log.producer_state
        producers = {
            status.producer_id: (
                status.epoch,
                status.last_sequence,
                status.coordinator_epoch,
                status.txn_first_offset,
            )
            for status in state.active_producers()
        }
        end_offset = self.log.log_end_offset
        return (
            producers,
            state.first_undecided_offset,
            self.log.aborted_transactions(0, end_offset),
            [entry for entry in self.log.leader_epochs.entries if entry.start_offset < end_offset],
            read_all(self.log),
        )


class TwoReplicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.leader, self.follower = Replica(self.root / "a"), Replica(self.root / "b")
        self.epoch = 0
        self.leader.log.begin_epoch(0)

    def teardown(self) -> None:
        self.leader.log.close(clean=False)
        self.follower.log.close(clean=False)
        shutil.rmtree(self.root)

    def next_sequence(self, pid: int) -> int:
        known = {status.producer_id: status for status in self.leader.log.producer_state.active_producers()}
        return known[pid].last_sequence + 1 if pid in known else 0

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        append(self.leader.log, batch(count), epoch=self.epoch)

    @rule(pid=st.sampled_from(IDEMPOTENT_PIDS))
    def write_idempotent(self, pid: int) -> None:
        data = batch(producer_id=pid, producer_epoch=0, base_sequence=self.next_sequence(pid))
        append(self.leader.log, data, epoch=self.epoch)

    @rule(pid=st.sampled_from(TXN_PIDS))
    def write_in_transaction(self, pid: int) -> None:
        append_txn(self.leader.log, pid, self.next_sequence(pid), leader_epoch=self.epoch)

    @rule(pid=st.sampled_from(TXN_PIDS), commit=st.booleans())
    def end_transaction(self, pid: int, commit: bool) -> None:
        marker = build_control_batch(
            commit, producer_id=pid, producer_epoch=0, coordinator_epoch=self.epoch, timestamp_ms=NOW_MS
        )
        append(self.leader.log, marker, origin=Origin.COORDINATOR, epoch=self.epoch)

    @rule(fetches=st.integers(1, 3), max_bytes=st.sampled_from([1, 200, 100_000]))
    def replicate(self, fetches: int, max_bytes: int) -> None:
        for _ in range(fetches):
            self.follower.follow(self.leader, self.epoch, max_bytes)

    @rule()
    def fail_over(self) -> None:
        """What the follower has not got is lost, when the former leader follows."""
        self.epoch += 1
        self.leader, self.follower = self.follower, self.leader
        self.leader.log.begin_epoch(self.epoch)

    @rule()
    def elect_again(self) -> None:
        self.epoch += 1
        self.leader.log.begin_epoch(self.epoch)

    @rule(is_leader=st.booleans(), clean=st.booleans())
    def restart(self, is_leader: bool, clean: bool) -> None:
        (self.leader if is_leader else self.follower).restart(clean=clean)
        if is_leader:
            self.elect_again()

    @rule(is_leader=st.booleans())
    def roll(self, is_leader: bool) -> None:
        (self.leader if is_leader else self.follower).log.roll(NOW_MS)

    @rule()
    def catch_up(self) -> None:
        for _ in range(1000):
            if not self.follower.follow(self.leader, self.epoch, 500):
                break
        else:
            raise AssertionError("the follower does not come to an end")
        assert self.follower.log.log_end_offset == self.leader.log.log_end_offset
        assert self.follower.knows() == self.leader.knows()
        end_offset = self.leader.log.log_end_offset
        for replica in (self.leader, self.follower):
            replica.log.producer_state.on_high_watermark(end_offset)
        unstable = [replica.log.producer_state.first_unstable_offset for replica in (self.leader, self.follower)]
        assert unstable[0] == unstable[1]

    @invariant()
    def epochs_never_go_back(self) -> None:
        for replica in (self.leader, self.follower):
            epochs = [entry.epoch for entry in replica.log.leader_epochs.entries]
            assert epochs == sorted(set(epochs))


TwoReplicas.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTwoReplicas = TwoReplicas.TestCase
