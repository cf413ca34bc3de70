"""The log refuses: nobody is left waiting, and memory agrees with the log again."""

from __future__ import annotations

import pytest

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.config import GroupConfig
from oncelog.core.errors import ErrorCode as E
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.sync_group import SyncGroupResponse
from tests.unit.coordinator.group.harness import GROUP, SESSION_MS, START_MS, Shell, sync_request


@pytest.mark.parametrize(
    ("append_error", "told"),
    [
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.RECORD_LIST_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
    ],
)
def test_clients_are_told_errors_of_a_coordinator_not_of_a_log(append_error: E, told: E) -> None:
    assert error_for_failed_append(append_error) == told
    shell = Shell()
    shell.failure = append_error
    assert shell.commit() == told


def test_an_assignment_that_could_not_be_stored_makes_everybody_start_over() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    waiting = shell.sync(second, 3)
    shell.failure = E.NOT_ENOUGH_REPLICAS
    leading = shell.sync(first, 3, {first: b"1", second: b"2"})
    assert leading.answer.error_code == waiting.answer.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert leading.answer.assignment == b""
    assert shell.state == "PreparingRebalance"
    assert shell.heartbeat(second, 3) == E.REBALANCE_IN_PROGRESS
    assert [member.member_assignment for member in shell.shard.describe_group(GROUP).members] == [b"", b""]
    again = shell.join(first)
    shell.join(second)
    assert again.answer.generation_id == 4


def test_a_new_group_that_could_not_be_stored_is_gone() -> None:
    shell = Shell(GroupConfig(initial_rebalance_delay_ms=3_000))
    shell.failure = E.NOT_LEADER_OR_FOLLOWER
    join = shell.join()
    assert join.answer.error_code == E.NOT_COORDINATOR
    assert shell.shard.describe_group(GROUP).members == []
    assert shell.shard.list_groups() == [], "memory knows as much as the log"
    assert shell.shard.next_deadline_ms() == START_MS + shell.config.offsets_retention_check_interval_ms
    assert shell.join().is_parked, "the next one finds a clean slate"
    shell.advance(3_000)
    assert shell.state == "CompletingRebalance"


def test_a_first_member_that_was_to_be_answered_at_once_gets_the_error() -> None:
    shell = Shell()
    shell.failure = E.NOT_LEADER_OR_FOLLOWER
    assert shell.join().answer.error_code == E.NOT_COORDINATOR
    assert shell.shard.list_groups() == []
    assert shell.join().answer.error_code == E.NONE


def test_an_id_from_a_group_that_could_not_be_stored_is_unknown_afterwards() -> None:
    shell = Shell()
    shell.failure = E.NOT_LEADER_OR_FOLLOWER
    required = shell.join(requires_known_member_id=True).answer
    assert required.error_code == E.MEMBER_ID_REQUIRED
    assert shell.join(required.member_id).answer.error_code == E.UNKNOWN_MEMBER_ID


def test_leaving_counts_even_if_the_empty_group_could_not_be_stored() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.failure = E.NOT_LEADER_OR_FOLLOWER
    assert shell.leave(first).error_code == E.NOT_COORDINATOR
    assert shell.state == "Empty"
    shell.restart()
    assert shell.state == "Stable", "the log knows no better"
    shell.advance(SESSION_MS)
    assert shell.state == "Empty"


def test_refused_commits_leave_no_trace() -> None:
    shell = Shell()
    assert shell.commit(1) == E.NONE
    shell.failure = E.NOT_ENOUGH_REPLICAS
    assert shell.commit(2) == E.COORDINATOR_NOT_AVAILABLE
    shell.failure = E.INVALID_PRODUCER_EPOCH
    assert shell.commit_in_transaction(9, 3) == E.INVALID_PRODUCER_EPOCH
    assert shell.fetch(stable=True) == (1, E.NONE)


def test_refused_deletions_leave_everything_in_place() -> None:
    shell = Shell()
    shell.commit(1)
    shell.failure = E.NOT_ENOUGH_REPLICAS
    assert shell.delete_offsets(TopicPartition("in", 0)).error_code == E.COORDINATOR_NOT_AVAILABLE
    shell.failure = E.NOT_ENOUGH_REPLICAS
    assert shell.delete_group() == E.COORDINATOR_NOT_AVAILABLE
    assert shell.fetch() == (1, E.NONE)


def test_errors_that_needed_no_log_stay_as_they_are() -> None:
    """One record is refused for its own reason, the other by the log: each keeps its error."""
    shell = Shell()
    (first,) = shell.stable_group()
    shell.join()
    shell.failure = E.NOT_ENOUGH_REPLICAS
    assert shell.commit(metadata="x" * 5_000, generation_id=1, member_id=first) == E.OFFSET_METADATA_TOO_LARGE
    assert shell.failure is not None, "nothing was appended for it"


def test_a_failure_that_comes_after_the_group_has_moved_on_changes_nothing() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.join(first)
    answers: list[object] = []
    request = sync_request(first, 2, {first: b"x"})
    late = shell.shard.membership.sync(request, answers.append, shell.now_ms)
    shell.join()
    assert shell.join(first).answer.generation_id == 3
    assert answers == [SyncGroupResponse(error_code=E.REBALANCE_IN_PROGRESS)]
    shell.run(shell.shard.append_failed(late, E.REQUEST_TIMED_OUT, "", shell.now_ms))
    assert len(answers) == 1
    assert (shell.state, shell.generation_id) == ("CompletingRebalance", 3)
