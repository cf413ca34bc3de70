"""Records that are in the log but not committed yet: nothing is shown of them, and nothing is decided against them."""

from __future__ import annotations

from typing import Any

from oncelog.coordinator.group.joining import JoiningClient
from oncelog.coordinator.outcome import Outcome
from oncelog.core.errors import ErrorCode as E
from oncelog.protocol.messages.join_group import JoinGroupRequest
from tests.unit.coordinator.group.harness import GROUP, RANGE, Pending, Shell, commit_request, entry, sync_request
from tests.unit.coordinator.group.shard_state import durable_state, expire_offsets

DAY_MS = 86_400_000


def begin_commit(shell: Shell, offset: int) -> tuple[Outcome, Pending[Any]]:
    """An offset commit whose record is on its way."""
    answer: Pending[Any] = Pending()
    request, response = commit_request("in", entry(0, offset))
    return shell.shard.commits.commit(request, response, answer.append, shell.now_ms, {}, 9), answer


def begin_sync(shell: Shell, member_id: str, generation_id: int, assignment: bytes) -> tuple[Outcome, Pending[Any]]:
    answer: Pending[Any] = Pending()
    request = sync_request(member_id, generation_id, {member_id: assignment})
    return shell.shard.membership.sync(request, answer.append, shell.now_ms), answer


def test_an_offset_is_shown_when_its_record_is_committed() -> None:
    shell = Shell()
    shell.commit(1)
    outcome, answer = begin_commit(shell, 2)
    assert shell.fetch() == (1, E.NONE)
    shell.run(outcome)
    assert answer.answer.topics[0].partitions[0].error_code == E.NONE
    assert shell.fetch() == (2, E.NONE)


def test_an_offset_that_is_being_committed_does_not_expire() -> None:
    shell = Shell()
    shell.commit(1)
    shell.now_ms += 365 * DAY_MS
    outcome, _ = begin_commit(shell, 2)
    expired = expire_offsets(shell.shard, shell.now_ms)
    shell.run(outcome)
    shell.run(expired)
    assert shell.fetch() == (2, E.NONE)


def test_a_group_that_is_being_committed_to_is_not_deleted() -> None:
    shell = Shell()
    shell.commit(1)
    outcome, _ = begin_commit(shell, 2)
    assert shell.delete_group() == E.NON_EMPTY_GROUP
    shell.run(outcome)
    assert shell.delete_group() == E.NONE
    assert shell.fetch() == (-1, E.NONE)


def test_a_commit_that_the_log_refused_does_not_keep_its_group_for_ever() -> None:
    shell = Shell()
    shell.commit(1)
    shell.failure = E.NOT_ENOUGH_REPLICAS
    assert shell.commit(2) == E.COORDINATOR_NOT_AVAILABLE
    assert shell.delete_group() == E.NONE


def test_a_commit_of_which_nothing_is_logged_does_not_keep_its_group_for_ever() -> None:
    shell = Shell()
    shell.commit(1)
    assert shell.commit(2, metadata="x" * 5_000) == E.OFFSET_METADATA_TOO_LARGE
    shell.now_ms += 365 * DAY_MS
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert shell.fetch() == (-1, E.NONE)
    shell.commit(1)
    assert shell.commit(2, metadata="x" * 5_000) == E.OFFSET_METADATA_TOO_LARGE
    assert shell.delete_group() == E.NONE


def test_a_member_that_syncs_while_the_assignment_is_stored_gets_it_too() -> None:
    shell = Shell()
    leader, follower = shell.stable_group(None, None)
    shell.join(leader)
    shell.join(follower)
    outcome, led = begin_sync(shell, leader, 3, b"all of it")
    late = shell.sync(follower, 3)
    assert led.is_parked and late.is_parked and shell.state == "CompletingRebalance"
    shell.run(outcome)
    assert (led.answer.assignment, late.answer.assignment) == (b"all of it", b"")
    assert shell.state == "Stable"
    shell.advance(9_000)
    assert shell.heartbeat(leader, 3) == shell.heartbeat(follower, 3) == E.NONE


def test_a_leader_that_repeats_itself_stores_one_assignment() -> None:
    shell = Shell()
    (leader,) = shell.stable_group()
    shell.join(leader)
    outcome, first = begin_sync(shell, leader, 2, b"first")
    again, second = begin_sync(shell, leader, 2, b"second")
    assert not again.records
    shell.run(again)
    shell.run(outcome)
    assert first.answer.error_code is E.REBALANCE_IN_PROGRESS
    assert second.answer.assignment == b"first"
    assert durable_state(shell.load()) == durable_state(shell.shard)


def test_a_group_that_is_joined_while_its_tombstone_is_stored_lives_on() -> None:
    shell = Shell()
    shell.commit(1)
    answer: Pending[Any] = Pending()
    tombstones = shell.shard.delete_group(GROUP, answer.append)
    join = shell.join()
    shell.run(tombstones)
    assert answer.answer.error_code is E.NONE
    assert shell.sync(join.answer.member_id, 1, {join.answer.member_id: b"x"}).answer.assignment == b"x"
    shell.restart()
    assert shell.state == "Stable"


def test_a_new_group_is_shown_when_the_log_has_it() -> None:
    """Another coordinator may take over before that, and would not know it."""
    shell = Shell()
    answer: Pending[Any] = Pending()
    request = JoinGroupRequest(group_id=GROUP, session_timeout_ms=10_000, protocol_type="consumer", protocols=RANGE)
    outcome = shell.shard.joining.join(request, answer.append, shell.now_ms, JoiningClient())
    assert shell.shard.list_groups() == []
    assert shell.shard.describe_group(GROUP).error_code is E.GROUP_ID_NOT_FOUND
    assert shell.join(requires_known_member_id=True).answer.error_code is E.MEMBER_ID_REQUIRED
    shell.run(outcome)
    assert answer.answer.error_code is E.MEMBER_ID_REQUIRED
    assert [group.group_id for group in shell.shard.list_groups()] == [GROUP]
    assert shell.state == "Empty"
