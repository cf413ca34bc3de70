"""Operation x state of the group x who asks -> error, in Kafka's order of checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.coordinator.group.config import GroupConfig
from oncelog.core.errors import ErrorCode as E
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from tests.unit.coordinator.group.harness import GROUP, Shell, leaving, protocol, subscription

STATES = ("missing", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")


class Scene:
    """A group in the wanted state with one member that the questions are about: the static member `i1`, its leader."""

    def __init__(self, state: str) -> None:
        self.shell = shell = Shell()
        self.member_id = "gone"
        if state == "missing":
            return
        (self.member_id,) = shell.stable_group("i1")
        if state == "Empty":
            shell.leave(self.member_id)
        elif state == "PreparingRebalance":
            shell.join("")
        elif state == "CompletingRebalance":
            shell.join(self.member_id, "i1")
        assert shell.state == state

    @property
    def generation_id(self) -> int:
        return self.shell.generation_id if GROUP in self.shell.shard._groups else 1


Question = Callable[[Scene], E]


def table(
    *rows: tuple[str, Question, tuple[E | None, ...]],
) -> pytest.MarkDecorator:
    """One row per question, one column per state; None where the question makes no sense."""
    cases = [
        pytest.param(state, question, expected, id=f"{state}-{name}")
        for name, question, answers in rows
        for state, expected in zip(STATES, answers, strict=True)
        if expected is not None
    ]
    return pytest.mark.parametrize(("state", "question", "expected"), cases)


def _check(state: str, question: Question, expected: E) -> None:
    assert question(Scene(state)) == expected


UNKNOWN, FENCED, GENERATION, REBALANCE = (
    E.UNKNOWN_MEMBER_ID,
    E.FENCED_INSTANCE_ID,
    E.ILLEGAL_GENERATION,
    E.REBALANCE_IN_PROGRESS,
)
OK = E.NONE


@table(
    (
        "member",
        lambda s: s.shell.heartbeat(s.member_id, s.generation_id),
        (UNKNOWN, UNKNOWN, REBALANCE, OK, OK),
    ),
    (
        "static member",
        lambda s: s.shell.heartbeat(s.member_id, s.generation_id, "i1"),
        (UNKNOWN, UNKNOWN, REBALANCE, OK, OK),
    ),
    (
        "stranger",
        lambda s: s.shell.heartbeat("stranger", s.generation_id),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "old generation",
        lambda s: s.shell.heartbeat(s.member_id, s.generation_id - 1),
        (UNKNOWN, UNKNOWN, GENERATION, GENERATION, GENERATION),
    ),
    (
        "fenced instance comes before the generation",
        lambda s: s.shell.heartbeat("older", s.generation_id - 1, "i1"),
        (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED),
    ),
    (
        "unknown instance",
        lambda s: s.shell.heartbeat(s.member_id, s.generation_id, "i9"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
)
def test_heartbeat(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    (
        "leader with the assignment",
        lambda s: s.shell.sync(s.member_id, s.generation_id, {s.member_id: b"x"}).answer.error_code,
        (UNKNOWN, UNKNOWN, REBALANCE, OK, OK),
    ),
    (
        "stranger",
        lambda s: s.shell.sync("stranger", s.generation_id).answer.error_code,
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "future generation",
        lambda s: s.shell.sync(s.member_id, s.generation_id + 1).answer.error_code,
        (UNKNOWN, UNKNOWN, GENERATION, GENERATION, GENERATION),
    ),
    (
        "fenced instance",
        lambda s: s.shell.sync("older", s.generation_id, group_instance_id="i1").answer.error_code,
        (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED),
    ),
    (
        "other protocol type",
        lambda s: s.shell.sync(s.member_id, s.generation_id, protocol_type="connect").answer.error_code,
        (UNKNOWN, UNKNOWN, *[E.INCONSISTENT_GROUP_PROTOCOL] * 3),
    ),
    (
        "other protocol name",
        lambda s: s.shell.sync(s.member_id, s.generation_id, protocol_name="sticky").answer.error_code,
        (UNKNOWN, UNKNOWN, *[E.INCONSISTENT_GROUP_PROTOCOL] * 3),
    ),
    (
        "right protocols",
        lambda s: (
            s.shell.sync(
                s.member_id, s.generation_id, protocol_type="consumer", protocol_name="range"
            ).answer.error_code
        ),
        (UNKNOWN, UNKNOWN, REBALANCE, OK, OK),
    ),
)
def test_sync(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    (
        "stranger",
        lambda s: s.shell.join("stranger").answer.error_code,
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "fenced instance",
        lambda s: s.shell.join("older", "i1").answer.error_code,
        (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED),
    ),
    (
        "other protocol type",
        lambda s: s.shell.join("", protocol_type="connect").answer.error_code,
        (OK, OK, *[E.INCONSISTENT_GROUP_PROTOCOL] * 3),
    ),
    (
        "no protocol in common",
        lambda s: s.shell.join("", protocols=[protocol("sticky", b"")]).answer.error_code,
        (OK, OK, *[E.INCONSISTENT_GROUP_PROTOCOL] * 3),
    ),
    (
        "protocols come before the member",
        lambda s: s.shell.join("stranger", protocol_type="connect").answer.error_code,
        (UNKNOWN, UNKNOWN, *[E.INCONSISTENT_GROUP_PROTOCOL] * 3),
    ),
    (
        "no protocol at all",
        lambda s: s.shell.join("", protocols=()).answer.error_code,
        (E.INCONSISTENT_GROUP_PROTOCOL,) * 5,
    ),
    (
        "newcomer of a client that can be sent back with an id",
        lambda s: s.shell.join("", requires_known_member_id=True).answer.error_code,
        (E.MEMBER_ID_REQUIRED,) * 5,
    ),
)
def test_join(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    (
        "member",
        lambda s: s.shell.leave(s.member_id).members[0].error_code,
        (UNKNOWN, UNKNOWN, OK, OK, OK),
    ),
    (
        "stranger",
        lambda s: s.shell.leave("stranger").members[0].error_code,
        (UNKNOWN,) * 5,
    ),
    (
        "operator, by instance id",
        lambda s: s.shell.leave(leaving("", "i1")).members[0].error_code,
        (UNKNOWN, UNKNOWN, OK, OK, OK),
    ),
    (
        "operator, unknown instance id",
        lambda s: s.shell.leave(leaving("", "i9")).members[0].error_code,
        (UNKNOWN,) * 5,
    ),
    (
        "nobody at all",
        lambda s: s.shell.leave(leaving("")).members[0].error_code,
        (UNKNOWN,) * 5,
    ),
    (
        "fenced instance",
        lambda s: s.shell.leave(leaving("older", "i1")).members[0].error_code,
        (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED),
    ),
)
def test_leave(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    (
        "member",
        lambda s: s.shell.commit(generation_id=s.generation_id, member_id=s.member_id),
        (E.GROUP_ID_NOT_FOUND, UNKNOWN, OK, REBALANCE, OK),
    ),
    (
        "member of a client that does not know GROUP_ID_NOT_FOUND",
        lambda s: s.shell.commit(
            generation_id=s.generation_id, member_id=s.member_id, understands_group_id_not_found=False
        ),
        (GENERATION, UNKNOWN, OK, REBALANCE, OK),
    ),
    (
        "nobody in particular",
        lambda s: s.shell.commit(),
        (OK, OK, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "stranger",
        lambda s: s.shell.commit(generation_id=s.generation_id, member_id="stranger"),
        (E.GROUP_ID_NOT_FOUND, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "old generation",
        lambda s: s.shell.commit(generation_id=s.generation_id - 1, member_id=s.member_id),
        (E.GROUP_ID_NOT_FOUND, UNKNOWN, GENERATION, GENERATION, GENERATION),
    ),
    (
        "member without a generation",
        lambda s: s.shell.commit(member_id=s.member_id),
        (OK, OK, GENERATION, GENERATION, GENERATION),
    ),
    (
        "fenced instance",
        lambda s: s.shell.commit(generation_id=s.generation_id, member_id="older", instance_id="i1"),
        (E.GROUP_ID_NOT_FOUND, UNKNOWN, FENCED, FENCED, FENCED),
    ),
    (
        "long metadata",
        lambda s: s.shell.commit(generation_id=s.generation_id, member_id=s.member_id, metadata="x" * 4097),
        (None, None, E.OFFSET_METADATA_TOO_LARGE, REBALANCE, E.OFFSET_METADATA_TOO_LARGE),
    ),
    (
        "metadata of the largest size",
        lambda s: s.shell.commit(generation_id=s.generation_id, member_id=s.member_id, metadata="x" * 4096),
        (None, None, OK, REBALANCE, OK),
    ),
)
def test_offset_commit(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    (
        "member, a rebalance does not matter",
        lambda s: s.shell.commit_in_transaction(9, generation_id=s.generation_id, member_id=s.member_id),
        (GENERATION, UNKNOWN, OK, OK, OK),
    ),
    (
        "member of a client that knows GROUP_ID_NOT_FOUND",
        lambda s: s.shell.commit_in_transaction(
            9, generation_id=s.generation_id, member_id=s.member_id, understands_group_id_not_found=True
        ),
        (E.GROUP_ID_NOT_FOUND, UNKNOWN, OK, OK, OK),
    ),
    (
        "client older than KIP-447",
        lambda s: s.shell.commit_in_transaction(9),
        (OK, OK, OK, OK, OK),
    ),
    (
        "stranger",
        lambda s: s.shell.commit_in_transaction(9, generation_id=s.generation_id, member_id="stranger"),
        (GENERATION, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ),
    (
        "zombie of an old generation",
        lambda s: s.shell.commit_in_transaction(9, generation_id=s.generation_id - 1, member_id=s.member_id),
        (GENERATION, UNKNOWN, GENERATION, GENERATION, GENERATION),
    ),
    (
        "fenced instance",
        lambda s: s.shell.commit_in_transaction(9, generation_id=s.generation_id, member_id="older", instance_id="i1"),
        (GENERATION, UNKNOWN, FENCED, FENCED, FENCED),
    ),
)
def test_txn_offset_commit(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


def _delete_partition(scene: Scene, topic: str) -> E:
    result = scene.shell.delete_offsets(TopicPartition(topic, 0))
    return E(result.error_code or result.topics[0].partitions[0].error_code)


@table(
    (
        "subscribed topic",
        lambda s: _delete_partition(s, "in"),
        (E.GROUP_ID_NOT_FOUND, OK, *[E.GROUP_SUBSCRIBED_TO_TOPIC] * 3),
    ),
    (
        "other topic",
        lambda s: _delete_partition(s, "other"),
        (E.GROUP_ID_NOT_FOUND, OK, OK, OK, OK),
    ),
)
def test_offset_delete(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


@table(
    ("", lambda s: s.shell.delete_group(), (E.GROUP_ID_NOT_FOUND, OK, *[E.NON_EMPTY_GROUP] * 3)),
)
def test_delete_group(state: str, question: Question, expected: E) -> None:
    _check(state, question, expected)


def test_offsets_of_a_group_that_is_not_of_consumers_cannot_be_deleted_while_it_has_members() -> None:
    shell = Shell()
    shell.stable_group(protocol_type="connect", protocols=[protocol("x", b"")])
    assert shell.delete_offsets(TopicPartition("in", 0)).error_code == E.NON_EMPTY_GROUP


def test_a_subscription_that_cannot_be_read_may_be_to_any_topic() -> None:
    shell = Shell()
    shell.stable_group(protocols=[protocol("range", b"not a subscription")])
    assert (
        shell.delete_offsets(TopicPartition("any", 0)).topics[0].partitions[0].error_code == E.GROUP_SUBSCRIBED_TO_TOPIC
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_every_version_of_a_subscription_is_read(version: int) -> None:
    shell = Shell()
    data = version.to_bytes(2, "big") + subscription("in", "also", version=min(version, 3))[2:]
    shell.stable_group(protocols=[protocol("range", data)])
    deleted = shell.delete_offsets(*(TopicPartition(topic, 0) for topic in ("in", "also", "other")))
    assert [bool(topic.partitions[0].error_code) for topic in deleted.topics] == [True, True, False]


# --- checks before the group is looked up ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [(5_999, E.INVALID_SESSION_TIMEOUT), (6_000, OK), (1_800_000, OK), (1_800_001, E.INVALID_SESSION_TIMEOUT)],
)
def test_a_session_timeout_must_be_within_its_bounds(timeout_ms: int, expected: E) -> None:
    assert Shell().join(session_timeout_ms=timeout_ms).answer.error_code == expected


def test_the_empty_group_id_is_only_good_for_plain_commits() -> None:
    shell = Shell()
    shard, now_ms = shell.shard, shell.now_ms
    assert shell.join(group_id="").answer.error_code == E.INVALID_GROUP_ID
    assert shell.sync("m", 1, group_id="").answer.error_code == E.INVALID_GROUP_ID
    beat = HeartbeatRequest(group_id="", generation_id=1, member_id="m")
    assert shell.ask(shard.membership.heartbeat, beat, now_ms).answer.error_code == E.INVALID_GROUP_ID
    bye = LeaveGroupRequest(group_id="", members=[leaving("m")])
    assert shell.ask(shard.membership.leave, bye, now_ms).answer.error_code == E.INVALID_GROUP_ID
    assert shell.delete_offsets(TopicPartition("in", 0), group_id="").error_code == E.INVALID_GROUP_ID
    assert shell.commit_in_transaction(9, group_id="") == E.INVALID_GROUP_ID
    assert shell.commit(5, group_id="") == OK
    assert shell.fetch(group_id="") == (5, OK)


def test_a_refused_join_does_not_create_a_group() -> None:
    shell = Shell()
    assert shell.join(protocols=()).answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert shell.shard.list_groups() == []
    assert shell.log == []


def test_an_id_that_was_given_to_a_dynamic_member_is_not_for_a_static_one() -> None:
    shell = Shell()
    member_id = shell.join(requires_known_member_id=True).answer.member_id
    assert shell.join(member_id, "i1").answer.error_code == E.UNKNOWN_SERVER_ERROR


def test_a_client_id_that_leaves_no_room_for_a_member_id_is_refused() -> None:
    assert Shell().join(client_id="c" * 32_001).answer.error_code == E.INVALID_REQUEST


# --- size --------------------------------------------------------------------------------------------------------


def test_a_full_group_takes_no_newcomer_but_its_members_may_rejoin() -> None:
    shell = Shell(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    first, second = shell.stable_group(None, None)
    assert shell.join("").answer.error_code == E.GROUP_MAX_SIZE_REACHED
    again = shell.join(first)
    assert shell.join("").is_parked, "while a round is open only those who have joined count"
    assert shell.join(second).answer.error_code == E.GROUP_MAX_SIZE_REACHED
    assert again.answer.error_code == OK
    assert {member.member_id for member in shell.shard.describe_group(GROUP).members} >= {first}


def test_a_loaded_group_above_the_limit_sheds_the_last_to_join() -> None:
    shell = Shell()
    first, second = shell.stable_group(None, None)
    shell.restart(GroupConfig(initial_rebalance_delay_ms=0, max_size=1))
    assert shell.state == "PreparingRebalance"
    joined = shell.join(second)
    assert shell.join(first).answer.error_code == E.GROUP_MAX_SIZE_REACHED
    assert joined.answer.leader == second
    assert [member.member_id for member in shell.shard.describe_group(GROUP).members] == [second]
