"""Static members (KIP-345): they come back under a new id without disturbing the others."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode as E
from tests.unit.coordinator.group.harness import GROUP, REBALANCE_MS, SESSION_MS, Shell, protocol, subscription


def test_a_restarted_follower_takes_over_its_assignment_without_a_round() -> None:
    shell = Shell()
    first, old = shell.stable_group("i1", "i2")
    back = shell.join("", "i2").answer
    assert (back.error_code, back.generation_id, back.leader, back.members) == (E.NONE, 2, first, [])
    assert back.member_id != old
    assert shell.state == "Stable"
    assert shell.sync(back.member_id, 2, group_instance_id="i2").answer.assignment == old.encode()
    assert shell.heartbeat(first, 2) == E.NONE


def test_the_predecessor_of_a_restarted_member_is_fenced_everywhere() -> None:
    shell = Shell()
    _, old = shell.stable_group("i1", "i2")
    shell.join("", "i2")
    assert shell.heartbeat(old, 2, "i2") == E.FENCED_INSTANCE_ID
    assert shell.sync(old, 2, group_instance_id="i2").answer.error_code == E.FENCED_INSTANCE_ID
    assert shell.join(old, "i2").answer.error_code == E.FENCED_INSTANCE_ID
    assert shell.commit(generation_id=2, member_id=old, instance_id="i2") == E.FENCED_INSTANCE_ID
    assert shell.commit_in_transaction(9, generation_id=2, member_id=old, instance_id="i2") == E.FENCED_INSTANCE_ID
    assert shell.heartbeat(old, 2) == E.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_is_told_to_skip_the_assignment() -> None:
    shell = Shell()
    old, second = shell.stable_group("i1", "i2")
    back = shell.join("", "i1").answer
    assert (back.skip_assignment, back.leader, back.generation_id) == (True, back.member_id, 2)
    assert [member.member_id for member in back.members] == [back.member_id, second]
    assert shell.sync(back.member_id, 2).answer.assignment == old.encode()


def test_a_restarted_leader_that_cannot_skip_takes_itself_for_a_follower() -> None:
    shell = Shell()
    old, _ = shell.stable_group("i1", "i2")
    back = shell.join("", "i1", supports_skipping_assignment=False).answer
    assert (back.skip_assignment, back.leader, back.members) == (False, old, [])
    assert back.member_id != old


def test_the_new_id_is_in_the_log() -> None:
    shell = Shell()
    first, _ = shell.stable_group("i1", "i2")
    back = shell.join("", "i2").answer.member_id
    shell.restart()
    assert [member.member_id for member in shell.shard.describe_group(GROUP).members] == [first, back]
    assert shell.heartbeat(back, 2, "i2") == E.NONE


def test_a_member_that_restarts_before_it_has_fetched_its_assignment_must_still_fetch_it_in_time() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    joins = shell.join(first, "i1"), shell.join(second, "i2")
    generation_id = joins[0].answer.generation_id
    shell.sync(first, generation_id, {first: b"a", second: b"b"})
    back = shell.join("", "i2").answer.member_id
    assert shell.state == "Stable"
    for _ in range(REBALANCE_MS // (SESSION_MS // 2) + 1):
        shell.heartbeat(first, generation_id)
        shell.heartbeat(back, generation_id)
        shell.advance(SESSION_MS // 2)
    assert shell.heartbeat(back, generation_id) == E.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(first, generation_id) == E.REBALANCE_IN_PROGRESS


def test_a_restarted_member_with_another_protocol_starts_a_round() -> None:
    shell = Shell()
    both = (protocol("range", subscription("in")), protocol("sticky", subscription("in")))
    (first,) = shell.stable_group("i1", protocols=both)
    back = shell.join("", "i1", protocols=both[::-1]).answer
    assert (back.generation_id, back.protocol_name) == (2, "sticky")
    assert back.member_id != first


def test_a_restarted_member_with_another_subscription_but_the_same_protocol_starts_none() -> None:
    """As in Kafka; but the new subscription counts when topics are asked for."""
    shell = Shell()
    shell.stable_group("i1")
    shell.join("", "i1", protocols=[protocol("range", subscription("other"))])
    assert shell.state == "Stable"
    assert shell.shard._groups[GROUP].topics == {"other"}
    shell.restart()
    assert shell.shard._groups[GROUP].topics == {"other"}


def test_a_restart_while_the_leader_assigns_starts_over() -> None:
    """The leader has the old id in its hands and would give the new one nothing."""
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    shell.join(first, "i1")
    shell.join(second, "i2")
    assert shell.state == "CompletingRebalance"
    waiting = shell.sync(second, 3)
    back = shell.join("", "i2")
    assert waiting.answer.error_code == E.FENCED_INSTANCE_ID
    assert shell.state == "PreparingRebalance"
    assert back.is_parked
    assert shell.join(first, "i1").answer.generation_id == 4
    assert back.answer.generation_id == 4


def test_a_restart_during_a_round_fences_the_parked_join_of_the_predecessor() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    shell.join()
    parked = shell.join(second, "i2")
    back = shell.join("", "i2")
    assert (parked.answer.error_code, parked.answer.member_id) == (E.FENCED_INSTANCE_ID, second)
    assert back.is_parked
    shell.join(first, "i1")
    assert back.answer.generation_id == 3


def test_a_static_member_that_is_away_keeps_its_place_for_its_session() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(first, 2)
    assert shell.state == "Stable"
    back = shell.join("", "i2").answer.member_id
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(first, 2)
    assert shell.state == "Stable", "the session starts anew with the new id"
    shell.advance(1)
    assert [member.member_id for member in shell.shard.describe_group(GROUP).members] == [first]
    assert shell.heartbeat(back, 2, "i2") == E.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(second, 2, "i2") == E.UNKNOWN_MEMBER_ID


def test_a_member_that_restarts_before_it_fetched_its_assignment_is_waited_for_under_its_new_id() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    shell.join(first, "i1")
    shell.join(second, "i2")
    shell.sync(first, 3, {second: b"s"})
    back = shell.join("", "i2").answer.member_id
    assert shell.sync(back, 3).answer.assignment == b"s"
    for _ in range(REBALANCE_MS // 5_000 + 1):
        shell.advance(5_000)
        assert shell.heartbeat(first, 3) == shell.heartbeat(back, 3) == E.NONE


def test_a_static_newcomer_is_not_sent_away_for_an_id() -> None:
    shell = Shell()
    assert shell.join("", "i1", requires_known_member_id=True).answer.error_code == E.NONE


def test_the_new_id_that_could_not_be_logged_is_taken_back() -> None:
    shell = Shell()
    first, second = shell.stable_group("i1", "i2")
    shell.failure = E.NOT_LEADER_OR_FOLLOWER
    other = (protocol("range", subscription("other")),)
    refused = shell.join("", "i2", session_timeout_ms=20_000, protocols=other).answer
    assert (refused.error_code, refused.member_id) == (E.NOT_COORDINATOR, "")
    assert shell.heartbeat(second, 2, "i2") == E.NONE
    assert shell.heartbeat(first, 2, "i1") == E.NONE
    assert shell.sync(second, 2).answer.assignment == second.encode()
    assert shell.shard._groups[GROUP].topics == {"in"}
    shell.advance(SESSION_MS)
    assert shell.state == "Empty", "the old session time-out counts again"
