"""Offsets in transactions: pending until the marker, unstable meanwhile, never lost to expiry or deletion."""

from __future__ import annotations

import pytest

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.offsets import CommittedOffset, OffsetStore
from oncelog.core.errors import ErrorCode as E
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from tests.unit.coordinator.group.harness import Shell, txn_commit_request
from tests.unit.coordinator.group.shard_state import expire_offsets, producers_with_pending_offsets

ALICE, BOB = 1001, 1002
UNSTABLE = (-1, E.UNSTABLE_OFFSET_COMMIT)


def test_a_pending_offset_is_not_seen_and_makes_the_partition_unstable() -> None:
    shell = Shell()
    shell.commit(1)
    assert shell.commit_in_transaction(ALICE, 2) == E.NONE
    assert shell.fetch() == (1, E.NONE)
    assert shell.fetch(stable=True) == UNSTABLE
    assert shell.fetch(1, stable=True) == (-1, E.NONE), "other partitions are not affected"


@pytest.mark.parametrize(("commit", "expected"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("restart", [False, True])
def test_the_marker_decides(commit: bool, expected: int, restart: bool) -> None:
    shell = Shell()
    shell.commit(1)
    shell.commit_in_transaction(ALICE, 2)
    if restart:
        shell.restart()
        assert shell.fetch(stable=True) == UNSTABLE
    shell.marker(ALICE, commit=commit)
    assert shell.fetch(stable=True) == (expected, E.NONE)
    shell.restart()
    assert shell.fetch(stable=True) == (expected, E.NONE)


def test_the_batch_belongs_to_the_producer() -> None:
    shell = Shell()
    request, response = txn_commit_request(ALICE, 0, 1, producer_epoch=7)
    outcome = shell.shard.commits.commit_in_transaction(request, response, lambda _: None, shell.now_ms, {}, 5)
    assert outcome.producer == ProducerIdAndEpoch(ALICE, 7)  # type: ignore[arg-type]
    assert len(outcome.records) == 1


def test_a_plain_commit_that_was_written_later_wins_over_a_marker() -> None:
    shell = Shell()
    shell.commit_in_transaction(ALICE, 2)
    shell.commit(1)
    shell.marker(ALICE, commit=True)
    assert shell.fetch(stable=True) == (1, E.NONE)
    shell.restart()
    assert shell.fetch(stable=True) == (1, E.NONE)


def test_of_two_transactions_the_one_that_was_written_later_wins_whatever_the_order_of_their_markers() -> None:
    for first, second in ((ALICE, BOB), (BOB, ALICE)):
        shell = Shell()
        shell.commit_in_transaction(ALICE, 10)
        shell.commit_in_transaction(BOB, 20)
        shell.marker(first, commit=True)
        assert shell.fetch(stable=True) == UNSTABLE, "the other one is still open"
        shell.marker(second, commit=True)
        assert shell.fetch(stable=True) == (20, E.NONE)


def test_the_last_of_several_commits_in_a_transaction_counts() -> None:
    shell = Shell()
    for offset in (1, 2, 3):
        shell.commit_in_transaction(ALICE, offset)
    shell.commit_in_transaction(ALICE, 9, group_id="g2")
    shell.marker(ALICE, commit=True)
    assert shell.fetch() == (3, E.NONE)
    assert shell.fetch(group_id="g2") == (9, E.NONE)
    assert producers_with_pending_offsets(shell.shard) == []


def test_a_marker_without_anything_pending_is_ignored() -> None:
    shell = Shell()
    shell.commit(1)
    shell.marker(ALICE, commit=True)
    assert shell.fetch(stable=True) == (1, E.NONE)


def test_stable_fetches_of_everything_mark_what_is_unstable() -> None:
    shell = Shell()
    shell.commit(1)
    shell.commit(2, partition=1)
    shell.commit_in_transaction(ALICE, 5, partition=1)
    shell.commit_in_transaction(ALICE, 6, partition=2)
    assert shell.fetch_all(stable=True) == [("in", 0, 1, E.NONE), ("in", 1, -1, E.UNSTABLE_OFFSET_COMMIT)]


def test_a_tombstone_forgets_what_is_pending_too() -> None:
    shell = Shell()
    shell.commit_in_transaction(ALICE, 5)
    shell.commit_in_transaction(BOB, 6)
    shell.commit_in_transaction(BOB, 7, partition=1)
    shell.delete_offsets(TopicPartition("in", 0))
    assert shell.fetch(stable=True) == (-1, E.NONE)
    assert producers_with_pending_offsets(shell.shard) == [BOB]
    shell.marker(ALICE, commit=True)
    shell.marker(BOB, commit=True)
    assert (shell.fetch()[0], shell.fetch(1)[0]) == (-1, 7)


def test_a_group_with_pending_offsets_is_not_deleted() -> None:
    shell = Shell()
    shell.commit(1, partition=1)
    shell.commit_in_transaction(ALICE, 5)
    assert shell.delete_group() == E.NON_EMPTY_GROUP
    shell.marker(ALICE, commit=False)
    assert shell.delete_group() == E.NONE


def test_a_group_of_pending_offsets_only_ends_with_an_abort() -> None:
    """Compaction leaves nothing of it, so that it would be gone after the next start."""
    shell = Shell()
    shell.commit_in_transaction(ALICE, 5)
    shell.commit_in_transaction(BOB, 6, partition=1)
    shell.marker(ALICE, commit=False)
    assert shell.state == "Empty"
    shell.restart()
    assert shell.fetch(1, stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    shell.marker(BOB, commit=False)
    assert shell.state == "Dead"


def test_a_group_whose_last_offset_was_deleted_is_there_until_the_next_clean_up() -> None:
    """Also after a start on a log of which compaction has left nothing but the tombstone."""
    shell = Shell()
    shell.commit(5)
    shell.delete_offsets(TopicPartition("in", 0))
    del shell.log[0]
    for _ in range(2):
        assert shell.state == "Empty"
        shell.restart()
    shell.advance(shell.config.offsets_retention_check_interval_ms)
    assert shell.state == "Dead"


def test_a_group_with_pending_offsets_only_is_not_expired() -> None:
    """KAFKA-19163: a group without committed offsets was removed under an open transaction."""
    shell = Shell(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=1))
    shell.commit_in_transaction(ALICE, 5)
    shell.now_ms += 1_000
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    shell.marker(ALICE, commit=True)
    assert shell.fetch() == (5, E.NONE)


def test_an_expired_offset_waits_for_its_pending_successor() -> None:
    shell = Shell(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=1_000))
    shell.commit(1)
    shell.commit(2, partition=1)
    shell.commit_in_transaction(ALICE, 5)
    shell.now_ms += 1_000
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert (shell.fetch(), shell.fetch(1)) == ((1, E.NONE), (-1, E.NONE))
    shell.marker(ALICE, commit=False)
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert shell.shard.list_groups() == []


def test_a_zombie_of_an_old_generation_is_fenced_while_its_successor_commits() -> None:
    """KIP-447: the group's generation, not the transactional id, tells who owns a partition now."""
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.leave(first)
    shell.join(second)
    generation_id = shell.generation_id
    assert shell.commit_in_transaction(ALICE, 5, generation_id=generation_id, member_id=second) == E.NONE
    assert shell.commit_in_transaction(BOB, 6, generation_id=generation_id - 1, member_id=first) == (
        E.UNKNOWN_MEMBER_ID
    )
    assert shell.commit_in_transaction(BOB, 6, generation_id=generation_id - 1, member_id=second) == (
        E.ILLEGAL_GENERATION
    )


def test_the_store_keeps_no_empty_shells() -> None:
    store = OffsetStore()
    partition = TopicPartition("in", 0)
    store.put("g", partition, CommittedOffset(offset=1))
    store.put_pending(ALICE, "g", partition, CommittedOffset(offset=2))
    store.remove("g", partition)
    store.put_pending(ALICE, "g", partition, CommittedOffset(offset=2))
    store.complete(ALICE, commit=False)
    assert (store._committed, store._pending, store._open) == ({}, {}, {})
