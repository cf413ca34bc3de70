"""Whole rounds: members that come, go, fail and return, on a virtual clock."""

from __future__ import annotations

import pytest

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.state import TRANSITIONS, GroupState, may_move
from oncelog.core.errors import ErrorCode as E
from oncelog.protocol.messages.describe_groups import DescribedGroupMember
from tests.unit.coordinator.group.harness import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Shell,
    leaving,
    protocol,
    subscription,
)

DELAYED = GroupConfig(initial_rebalance_delay_ms=3_000)


def members(shell: Shell) -> list[str]:
    return [member.member_id for member in shell.shard.describe_group(GROUP).members]


# --- the table ---------------------------------------------------------------------------------------------------


def test_the_table_allows_exactly_kafkas_transitions() -> None:
    names = {state: {target.value for target in targets} for state, targets in TRANSITIONS.items()}
    assert names == {
        GroupState.EMPTY: {"PreparingRebalance", "Dead"},
        GroupState.PREPARING_REBALANCE: {"CompletingRebalance", "Empty", "Dead"},
        GroupState.COMPLETING_REBALANCE: {"Stable", "PreparingRebalance", "Dead"},
        GroupState.STABLE: {"PreparingRebalance", "Dead"},
        GroupState.DEAD: set(),
    }
    assert not may_move(GroupState.EMPTY, GroupState.STABLE)


# --- one member --------------------------------------------------------------------------------------------------


def test_a_single_member_joins_syncs_and_is_stable() -> None:
    shell = Shell()
    joined = shell.join().answer
    assert (joined.error_code, joined.generation_id, joined.protocol_type, joined.protocol_name) == (
        E.NONE,
        1,
        "consumer",
        "range",
    )
    assert joined.leader == joined.member_id == "c-id0"
    assert [(member.member_id, member.metadata) for member in joined.members] == [("c-id0", subscription("in"))]
    assert shell.state == "CompletingRebalance"
    synced = shell.sync(joined.member_id, 1, {joined.member_id: b"all"}).answer
    assert (synced.error_code, synced.assignment, synced.protocol_type, synced.protocol_name) == (
        E.NONE,
        b"all",
        "consumer",
        "range",
    )
    assert shell.state == "Stable"


def test_an_id_is_required_first_and_then_good_for_one_join() -> None:
    shell = Shell()
    required = shell.join(requires_known_member_id=True).answer
    assert (required.error_code, required.member_id, required.generation_id) == (E.MEMBER_ID_REQUIRED, "c-id0", -1)
    assert shell.state == "Empty"
    joined = shell.join(required.member_id, requires_known_member_id=True).answer
    assert (joined.error_code, joined.member_id, joined.generation_id) == (E.NONE, "c-id0", 1)


def test_an_id_that_nobody_comes_back_with_expires() -> None:
    shell = Shell()
    required = shell.join(requires_known_member_id=True).answer
    shell.advance(SESSION_MS)
    assert shell.join(required.member_id).answer.error_code == E.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_that_were_handed_out_until_they_expire() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.join(requires_known_member_id=True)
    again = shell.join(first)
    assert again.is_parked
    shell.advance(SESSION_MS)
    assert again.answer.generation_id == 2


def test_an_id_that_was_handed_out_can_be_given_back() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    required = shell.join(requires_known_member_id=True).answer
    again = shell.join(first)
    assert shell.leave(required.member_id).members[0].error_code == E.NONE
    assert again.answer.generation_id == 2


def test_member_ids_start_with_the_client_or_the_instance() -> None:
    shell = Shell()
    assert shell.join(client_id="billing").answer.member_id == "billing-id0"
    assert shell.join(group_id="g2", client_id="billing", instance_id="i1").answer.member_id == "i1-id1"


# --- initial delay -----------------------------------------------------------------------------------------------


def test_the_first_rebalance_waits_for_company() -> None:
    shell = Shell(DELAYED)
    first = shell.join()
    shell.advance(2_999)
    assert first.is_parked
    shell.advance(1)
    assert first.answer.generation_id == 1


def test_newcomers_extend_the_delay_but_not_beyond_the_rebalance_timeout() -> None:
    shell = Shell(DELAYED)
    joins = [shell.join(rebalance_timeout_ms=10_000)]
    while joins[0].is_parked:
        shell.advance(1_000)
        if joins[0].is_parked:
            joins.append(shell.join(rebalance_timeout_ms=10_000))
    assert shell.now_ms == START_MS + 10_000
    assert {join.answer.generation_id for join in joins} == {1}
    assert sum(bool(join.answer.members) for join in joins) == 1


def test_one_newcomer_extends_the_delay_once() -> None:
    shell = Shell(DELAYED)
    first = shell.join()
    shell.advance(1_000)
    second = shell.join()
    shell.advance(4_999)
    assert first.is_parked and second.is_parked
    shell.advance(1)
    assert first.answer.generation_id == second.answer.generation_id == 1
    assert len(first.answer.members) == 2


def test_newcomers_of_an_earlier_round_do_not_extend_the_delay_of_the_next() -> None:
    shell = Shell(DELAYED)
    joins = [shell.join(rebalance_timeout_ms=3_000), shell.join(rebalance_timeout_ms=3_000)]
    shell.advance(3_000)
    shell.leave(*(join.answer.member_id for join in joins))
    assert shell.state == "Empty"
    alone = shell.join()
    shell.advance(3_000)
    assert alone.answer.error_code == E.NONE


def test_a_group_that_everybody_leaves_during_the_delay_becomes_empty() -> None:
    shell = Shell(DELAYED)
    join = shell.join("", "i1")
    assert shell.leave(leaving("", "i1")).members[0].error_code == E.NONE
    assert join.answer.error_code == E.UNKNOWN_MEMBER_ID
    shell.advance(3_000)
    assert shell.state == "Empty"


# --- several members ---------------------------------------------------------------------------------------------


def test_a_second_member_starts_a_round_that_the_first_learns_of_by_heartbeat() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    second = shell.join()
    assert second.is_parked
    assert shell.heartbeat(first, 1) == E.REBALANCE_IN_PROGRESS
    again = shell.join(first).answer
    joined = second.answer
    assert (again.generation_id, joined.generation_id) == (2, 2)
    assert again.leader == joined.leader == first
    assert [member.member_id for member in again.members] == [first, joined.member_id]
    assert joined.members == []


def test_followers_wait_for_the_leaders_assignment_and_get_their_own() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    second = shell.join()
    shell.join(first)
    follower = second.answer.member_id
    waiting = shell.sync(follower, 2, {follower: b"a follower's word does not count"})
    assert waiting.is_parked
    leading = shell.sync(first, 2, {first: b"0", follower: b"1"})
    assert (leading.answer.assignment, waiting.answer.assignment) == (b"0", b"1")
    assert shell.sync(follower, 2).answer.assignment == b"1"


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    shell = Shell()
    joined = shell.join().answer
    synced = shell.sync(joined.member_id, 1, {"somebody else": b"x"}).answer
    assert (synced.error_code, synced.assignment) == (E.NONE, b"")
    assert any("assigned nothing" in note for note in shell.notes)


def test_a_member_that_leaves_makes_the_others_rebalance() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    assert shell.leave(first).members[0].error_code == E.NONE
    assert shell.heartbeat(second, shell.generation_id) == E.REBALANCE_IN_PROGRESS
    joined = shell.join(second).answer
    assert (joined.leader, joined.generation_id) == (second, 3)


def test_the_last_one_to_leave_empties_the_group_and_that_is_logged() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    before = len(shell.log)
    shell.leave(first)
    assert (shell.state, shell.generation_id) == ("Empty", 2)
    assert len(shell.log) == before + 1
    shell.restart()
    assert (shell.state, shell.generation_id) == ("Empty", 2)
    assert shell.shard.describe_group(GROUP).protocol_type == "consumer"


def test_several_members_leave_with_one_request() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", None)
    result = shell.leave(leaving("", "i1"), leaving(second), leaving("stranger"))
    assert [(entry.member_id, entry.group_instance_id, entry.error_code) for entry in result.members] == [
        ("", "i1", E.NONE),
        (second, None, E.NONE),
        ("stranger", None, E.UNKNOWN_MEMBER_ID),
    ]
    assert shell.state == "Empty"
    assert shell.heartbeat(first, shell.generation_id) == E.UNKNOWN_MEMBER_ID


def test_a_request_parked_by_somebody_who_leaves_is_answered() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    second = shell.join()
    shell.join(first)
    follower = second.answer.member_id
    waiting = shell.sync(follower, 2)
    shell.leave(follower)
    assert waiting.answer.error_code == E.UNKNOWN_MEMBER_ID


def test_a_new_round_sends_those_who_wait_for_an_assignment_back_to_join() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    second = shell.join()
    shell.join(first)
    waiting = shell.sync(second.answer.member_id, 2)
    shell.join()
    assert waiting.answer.error_code == E.REBALANCE_IN_PROGRESS
    assert shell.state == "PreparingRebalance"


def test_a_request_that_is_sent_twice_is_answered_twice() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    impatient = shell.join(first)
    patient = shell.join(first)
    assert impatient.answer.error_code == E.REBALANCE_IN_PROGRESS
    follower = shell.join(second)
    assert patient.answer.generation_id == follower.answer.generation_id == 3
    impatient_sync = shell.sync(second, 3)
    patient_sync = shell.sync(second, 3)
    assert impatient_sync.answer.error_code == E.REBALANCE_IN_PROGRESS
    shell.sync(first, 3, {second: b"s"})
    assert patient_sync.answer.assignment == b"s"


def test_a_member_that_missed_its_join_answer_is_told_again() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    again = shell.join(second).answer
    assert (again.error_code, again.generation_id, again.leader, again.members) == (E.NONE, 3, first, [])
    assert len(shell.join(first).answer.members) == 2
    assert shell.state == "CompletingRebalance"


def test_a_stable_follower_that_says_the_same_again_disturbs_nobody() -> None:
    shell = Shell()
    _, second = shell.stable_group(None, None)
    again = shell.join(second).answer
    assert (again.error_code, again.generation_id) == (E.NONE, 2)
    assert shell.state == "Stable"


def test_a_stable_follower_with_another_subscription_starts_a_round() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    changed = shell.join(second, protocols=[protocol("range", subscription("in", "more"))])
    assert changed.is_parked
    assert shell.join(first).answer.generation_id == 3
    assert changed.answer.error_code == E.NONE


def test_the_leader_may_start_a_round_without_a_change() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    assert shell.join(first).answer.generation_id == 2


# --- cooperative -------------------------------------------------------------------------------------------------


def test_a_cooperative_rebalance_goes_through_a_second_round() -> None:
    """Round one takes a partition away, round two, asked for by whoever lost it, gives it to the newcomer."""
    cooperative = (protocol("cooperative-sticky", subscription("in")),)
    shell = Shell()
    (first,) = shell.stable_group(protocols=cooperative)
    newcomer = shell.join(protocols=cooperative)
    shell.join(first, protocols=cooperative)
    second = newcomer.answer.member_id
    waiting = shell.sync(second, 2)
    assert shell.sync(first, 2, {first: b"p0", second: b""}).answer.assignment == b"p0"
    assert waiting.answer.assignment == b""
    changed = (protocol("cooperative-sticky", subscription("in") + b"owned: p0"),)
    again = shell.join(first, protocols=changed)
    assert shell.heartbeat(second, 2) == E.REBALANCE_IN_PROGRESS
    assert shell.join(second, protocols=cooperative).answer.generation_id == 3
    assert again.answer.members[0].metadata.endswith(b"owned: p0")
    waiting = shell.sync(second, 3)
    shell.sync(first, 3, {first: b"p0", second: b"p1"})
    assert waiting.answer.assignment == b"p1"


def test_a_group_moves_to_the_protocol_that_everybody_knows() -> None:
    shell = Shell()
    both = (protocol("cooperative-sticky", b"c"), protocol("range", subscription("in")))
    (first,) = shell.stable_group()
    newcomer = shell.join(protocols=both)
    assert shell.join(first).answer.protocol_name == "range"
    assert newcomer.answer.protocol_name == "range"
    second = newcomer.answer.member_id
    assert shell.join(first, protocols=both).is_parked
    assert shell.join(second, protocols=both).answer.protocol_name == "cooperative-sticky"


def test_the_protocol_with_the_most_votes_wins() -> None:
    shell = Shell(DELAYED)
    a, b = protocol("a", b""), protocol("b", b"")
    joins = [shell.join(protocols=protocols) for protocols in ((a, b), (b, a), (b, a))]
    shell.advance(60_000)
    assert {join.answer.protocol_name for join in joins} == {"b"}


# --- time-outs ---------------------------------------------------------------------------------------------------


def test_a_silent_member_is_out_after_its_session_timeout() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.advance(SESSION_MS - 1)
    assert shell.heartbeat(second, 2) == E.NONE
    shell.advance(1)
    assert members(shell) == [second]
    assert shell.heartbeat(second, 2) == E.REBALANCE_IN_PROGRESS
    joined = shell.join(second).answer
    assert (joined.leader, joined.generation_id) == (second, 3)
    assert shell.heartbeat(first, 3) == E.UNKNOWN_MEMBER_ID


def test_commits_keep_a_member_alive() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    for _ in range(5):
        shell.advance(SESSION_MS - 1)
        assert shell.commit(generation_id=1, member_id=first) == E.NONE
    assert members(shell) == [first]


def test_commits_keep_a_member_alive_also_while_others_are_waited_for() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.join()
    for _ in range(4):
        shell.advance(SESSION_MS - 1)
        assert shell.commit(generation_id=1, member_id=first) == E.NONE
    assert first in members(shell)


def test_a_group_whose_only_member_dies_is_empty() -> None:
    shell = Shell()
    shell.stable_group()
    shell.advance(SESSION_MS)
    assert shell.state == "Empty"


def test_a_dynamic_member_that_does_not_rejoin_is_left_behind_at_the_rebalance_timeout() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    newcomer = shell.join()
    again = shell.join(second)
    deadline_ms = shell.now_ms + REBALANCE_MS
    while shell.now_ms < deadline_ms:
        assert again.is_parked
        assert shell.heartbeat(first, 2) == E.REBALANCE_IN_PROGRESS, "it lives but does not rejoin"
        shell.advance(5_000)
    assert (again.answer.leader, again.answer.generation_id) == (second, 3)
    assert {member.member_id for member in again.answer.members} == {second, newcomer.answer.member_id}


def test_a_parked_join_counts_as_a_heartbeat() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    newcomer = shell.join()
    again = shell.join(second)
    for _ in range(5):
        shell.advance(SESSION_MS - 1)
        shell.heartbeat(first, 2)
    assert again.is_parked and newcomer.is_parked
    shell.join(first)
    assert again.answer.error_code == newcomer.answer.error_code == E.NONE


def test_the_session_of_a_member_starts_anew_when_its_join_is_answered() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    newcomer = shell.join()
    again = shell.join(second)
    for _ in range(4):
        shell.heartbeat(first, 2)
        shell.advance(5_000)
    assert again.is_parked
    shell.join(first)
    shell.advance(SESSION_MS - 1)
    assert set(members(shell)) == {first, second, newcomer.answer.member_id}
    shell.advance(1)
    assert shell.state == "Empty", "nobody was heard of since"


def test_the_session_of_a_member_starts_anew_when_its_sync_is_answered() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    waiting = shell.sync(second, 3)
    for _ in range(4):
        shell.heartbeat(first, 3)
        shell.advance(5_000)
    assert waiting.is_parked
    shell.sync(first, 3, {first: b"1", second: b"2"})
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(first, 3)
    assert members(shell) == [first, second]
    shell.advance(1)
    assert members(shell) == [first]


def test_fetching_the_assignment_again_is_a_sign_of_life() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    for _ in range(3):
        shell.advance(SESSION_MS - 1)
        assert shell.sync(first, 1).answer.error_code == E.NONE


def test_a_newcomer_parked_for_five_minutes_is_told_to_come_again() -> None:
    shell = Shell()
    shell.stable_group(None, rebalance_timeout_ms=1_800_000)
    first = members(shell)[0]
    newcomer = shell.join(rebalance_timeout_ms=1_800_000)
    for _ in range(300_000 // 5_000):
        shell.heartbeat(first, 1)
        shell.advance(5_000)
    assert newcomer.answer.error_code == E.UNKNOWN_MEMBER_ID
    assert members(shell) == [first]


def test_a_leader_that_never_assigns_is_removed_and_another_one_leads() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    waiting = shell.sync(second, 3)
    for _ in range(REBALANCE_MS // 5_000):
        assert waiting.is_parked
        shell.heartbeat(first, 3)
        shell.advance(5_000)
    assert waiting.answer.error_code == E.REBALANCE_IN_PROGRESS
    joined = shell.join(second).answer
    assert (joined.leader, joined.generation_id) == (second, 4)


def test_a_follower_that_never_fetches_its_assignment_is_removed_from_a_stable_group() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    shell.sync(first, 3, {first: b"x"})
    for _ in range(REBALANCE_MS // 5_000):
        assert shell.state == "Stable"
        shell.heartbeat(first, 3)
        shell.heartbeat(second, 3)
        shell.advance(5_000)
    assert shell.state == "PreparingRebalance"
    assert members(shell) == [first]


def test_a_leader_that_dies_while_others_wait_for_its_assignment() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    waiting = shell.sync(second, 3)
    shell.advance(SESSION_MS)
    assert waiting.answer.error_code == E.REBALANCE_IN_PROGRESS
    assert members(shell) == [second]
    assert shell.join(second).answer.leader == second


def test_an_absent_leader_is_replaced_by_one_who_came() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", None)
    newcomer = shell.join()
    again = shell.join(second)
    while again.is_parked:
        shell.heartbeat(first, 2)
        shell.advance(5_000)
    assert again.answer.leader == second
    assert first in {member.member_id for member in again.answer.members}, "a static member keeps its place"
    assert newcomer.answer.generation_id == 3
    shell.sync(second, 3, {second: b"x"})
    shell.restart()
    assert shell.shard._groups[GROUP].leader_id == second, "the log knows who leads"


def test_a_round_that_nobody_joins_stays_open_for_static_members_until_their_sessions_end() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", None, session_timeout_ms=100_000)
    shell.leave(second)
    assert shell.state == "PreparingRebalance"
    shell.advance(REBALANCE_MS)
    assert (shell.state, members(shell)) == ("PreparingRebalance", [first])
    shell.advance(100_000 + REBALANCE_MS)
    assert shell.state == "Empty"


def test_the_rebalance_timeout_of_version_0_is_the_session_timeout() -> None:
    shell = Shell()
    (first,) = shell.stable_group(rebalance_timeout_ms=-1)
    newcomer = shell.join(rebalance_timeout_ms=-1)
    shell.advance(5_000)
    shell.heartbeat(first, 1)
    shell.advance(SESSION_MS - 5_000)
    assert newcomer.answer.generation_id == 2


# --- life of a shard ---------------------------------------------------------------------------------------------


def test_a_stable_group_survives_a_restart_and_its_members_go_on() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    before = shell.shard.describe_group(GROUP)
    shell.restart()
    assert shell.shard.describe_group(GROUP) == before
    assert shell.heartbeat(first, 2) == shell.heartbeat(second, 2) == E.NONE
    assert shell.sync(second, 2).answer.assignment == second.encode()
    assert shell.commit(7, generation_id=2, member_id=second) == E.NONE


def test_a_restart_in_the_middle_of_a_round_falls_back_to_the_generation_in_the_log() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    assert shell.join(first).answer.generation_id == 2
    shell.restart()
    assert (shell.state, shell.generation_id) == ("Stable", 1)
    assert shell.sync(first, 2, {first: b"new"}).answer.error_code == E.ILLEGAL_GENERATION
    assert shell.heartbeat(first, 2) == E.ILLEGAL_GENERATION
    assert shell.commit(generation_id=2, member_id=first) == E.ILLEGAL_GENERATION
    assert shell.join(first).answer.generation_id == 2


def test_members_of_a_loaded_group_must_be_heard_of_within_their_session() -> None:
    shell = Shell()
    shell.stable_group()
    shell.advance(5_000)
    shell.restart()
    shell.advance(SESSION_MS - 1)
    assert shell.state == "Stable"
    shell.advance(1)
    assert shell.state == "Empty"


def test_unloading_sends_everybody_who_waits_to_another_coordinator() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    joining = shell.join(first)
    shell.run(shell.shard.unload())
    assert joining.answer.error_code == E.NOT_COORDINATOR
    assert shell.shard.next_deadline_ms() is None

    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.join(first)
    shell.join(second)
    syncing = shell.sync(second, 3)
    shell.run(shell.shard.unload())
    assert syncing.answer.error_code == E.NOT_COORDINATOR


@pytest.mark.parametrize("instance_id", [None, "i1"])
def test_a_member_is_described_with_what_it_said(instance_id: str | None) -> None:
    shell = Shell()
    (first,) = shell.stable_group(instance_id)
    described = shell.shard.describe_group(GROUP)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert member == DescribedGroupMember(
        member_id=first,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/127.0.0.1",
        member_metadata=subscription("in"),
        member_assignment=first.encode(),
    )
    shell.join()
    described = shell.shard.describe_group(GROUP)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert described.members[0].member_metadata == b"", "the next round may choose another protocol"
