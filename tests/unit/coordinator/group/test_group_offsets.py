"""Committed offsets: fetch, delete, expiry, and the groups that exist for them alone."""

from __future__ import annotations

import uuid

import pytest

from oncelog.coordinator.group.config import GroupConfig
from oncelog.core.errors import ErrorCode as E
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_fetch import OffsetFetchResponsePartitions
from tests.unit.coordinator.group.harness import GROUP, SESSION_MS, START_MS, Shell, entry, protocol, subscription
from tests.unit.coordinator.group.shard_state import durable_state, expire_offsets

RETENTION_MS = 1_000_000
HOUR_MS = 3_600_000
SHORT = GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS)
ID_1, ID_2 = uuid.UUID(int=1), uuid.UUID(int=2)


def fetch_all(shell: Shell, *, stable: bool = False) -> list[tuple[str, int, int, E]]:
    return shell.fetch_all(stable=stable)


# --- commit and fetch --------------------------------------------------------------------------------------------


def test_the_last_commit_is_what_is_fetched() -> None:
    shell = Shell()
    shell.commit(5)
    shell.commit(6, metadata="note", leader_epoch=3)
    assert shell.shard.commits.fetch(GROUP, "in", ID_1, [0], require_stable=False) == [
        OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=6, committed_leader_epoch=3, metadata="note", error_code=E.NONE
        )
    ]


def test_what_was_never_committed_is_no_error() -> None:
    shell = Shell()
    assert shell.fetch() == (-1, E.NONE)
    shell.commit(5)
    assert shell.fetch(9) == (-1, E.NONE)
    assert shell.fetch(topic="other") == (-1, E.NONE)


def test_everything_a_group_has_comes_without_naming_it() -> None:
    shell = Shell()
    for partition in (2, 0):
        shell.commit(partition + 10, partition=partition)
    shell.commit(1, topic="also")
    shell.commit(99, group_id="g2")
    assert fetch_all(shell) == [("also", 0, 1, E.NONE), ("in", 0, 10, E.NONE), ("in", 2, 12, E.NONE)]


def test_several_partitions_in_one_request_each_have_their_own_answer() -> None:
    shell = Shell()
    answers = shell.commit_all("in", entry(0, 1), entry(1, 2, metadata="x" * 5_000), entry(2, 3, metadata=None))
    assert [answer.error_code for answer in answers] == [E.NONE, E.OFFSET_METADATA_TOO_LARGE, E.NONE]
    assert [shell.fetch(partition)[0] for partition in range(3)] == [1, -1, 3]


def test_an_offset_of_a_deleted_topic_is_not_that_of_its_namesake() -> None:
    shell = Shell()
    shell.commit(5, topic_id=ID_1)

    assert shell.fetch(topic_id=ID_1) == (5, E.NONE)
    assert shell.fetch(topic_id=ID_2) == (-1, E.NONE)
    assert shell.fetch() == (5, E.NONE), "who does not know the id is trusted with the name"


def test_a_commit_without_members_makes_a_simple_group() -> None:
    shell = Shell()
    shell.commit(5)
    simple = ListedGroup(group_id=GROUP, protocol_type="", group_state="Empty", group_type="classic")
    assert shell.shard.list_groups() == [simple]
    shell.restart()
    assert shell.shard.list_groups() == [simple]
    assert shell.fetch() == (5, E.NONE)


def test_members_may_join_a_simple_group_and_find_its_offsets() -> None:
    shell = Shell()
    shell.commit(5)
    (first,) = shell.stable_group()
    assert shell.fetch() == (5, E.NONE)
    assert shell.commit(6) == E.UNKNOWN_MEMBER_ID, "it is theirs now"
    assert shell.commit(6, generation_id=1, member_id=first) == E.NONE


def test_offsets_survive_a_restart_as_they_were() -> None:
    shell = Shell()
    shell.commit(5, metadata="m", leader_epoch=2, topic_id=ID_1)
    shell.commit(7, partition=1, retention_ms=HOUR_MS)
    before = durable_state(shell.shard)
    shell.restart()
    assert durable_state(shell.shard) == before


# --- delete ------------------------------------------------------------------------------------------------------


def test_deleted_offsets_are_gone_also_after_a_restart() -> None:
    shell = Shell()
    shell.commit(5)
    shell.commit(6, partition=1)
    before = len(shell.log)
    result = shell.delete_offsets(TopicPartition("in", 0), TopicPartition("in", 7))
    answers = [answer for topic in result.topics for answer in topic.partitions]
    assert [(answer.partition_index, answer.error_code) for answer in answers] == [(0, E.NONE), (7, E.NONE)]
    assert len(shell.log) == before + 1, "no tombstone for what was not there"
    shell.restart()
    assert fetch_all(shell) == [("in", 1, 6, E.NONE)]


def test_offsets_of_topics_that_are_still_subscribed_to_stay() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    for topic in ("in", "old"):
        shell.commit(5, topic=topic, generation_id=1, member_id=first)
    result = shell.delete_offsets(TopicPartition("in", 0), TopicPartition("old", 0))
    codes = [topic.partitions[0].error_code for topic in result.topics]
    assert codes == [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE]
    assert fetch_all(shell) == [("in", 0, 5, E.NONE)]


def test_a_deleted_group_is_gone_with_its_offsets() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.commit(5, generation_id=1, member_id=first)
    shell.leave(first)
    assert shell.delete_group() == E.NONE
    for _ in range(2):
        assert shell.shard.list_groups() == []
        assert shell.fetch() == (-1, E.NONE)
        assert durable_state(shell.shard) == ({}, {}, {})
        shell.restart()


def test_a_deleted_group_leaves_no_timer_behind() -> None:
    shell = Shell()
    shell.join(requires_known_member_id=True)
    assert shell.delete_group() == E.NONE
    assert shell.shard.next_deadline_ms() == START_MS + shell.config.offsets_retention_check_interval_ms


def test_several_groups_are_deleted_one_by_one() -> None:
    shell = Shell()
    shell.stable_group()
    shell.commit(5, group_id="g2")
    codes = [shell.delete_group(group_id) for group_id in ("g2", GROUP, "g3", "g2")]
    assert codes == [E.NONE, E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND, E.GROUP_ID_NOT_FOUND]


def test_a_deleted_group_can_be_made_again_and_starts_over() -> None:
    shell = Shell()
    (first,) = shell.stable_group()
    shell.leave(first)
    shell.delete_group()
    assert shell.join().answer.generation_id == 1


def test_offsets_of_a_deleted_topic_go_but_not_those_of_its_namesake() -> None:
    shell = Shell()
    shell.commit(1, topic_id=ID_1)
    shell.commit(2, partition=1)
    shell.commit(3, partition=2, topic_id=ID_2)
    shell.commit(4, topic="other", topic_id=ID_1)
    shell.commit_in_transaction(9, 5, partition=3)
    shell.run(shell.shard.topics_deleted([("in", ID_1)]))
    assert fetch_all(shell) == [("in", 2, 3, E.NONE), ("other", 0, 4, E.NONE)]
    shell.marker(9, commit=True)
    assert shell.fetch(3) == (-1, E.NONE)


# --- expiry ------------------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_group_expire_after_their_last_commit_and_the_group_with_them() -> None:
    shell = Shell(SHORT)
    shell.commit(1)
    shell.now_ms += RETENTION_MS // 2
    shell.commit(2, partition=1)
    shell.now_ms = START_MS + RETENTION_MS - 1
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert len(fetch_all(shell)) == 2
    shell.now_ms += 1
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert fetch_all(shell) == [("in", 1, 2, E.NONE)]
    shell.now_ms += RETENTION_MS // 2
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    for _ in range(2):
        assert shell.shard.list_groups() == []
        assert durable_state(shell.shard) == ({}, {}, {})
        shell.restart()


def test_offsets_of_a_group_with_members_expire_only_after_it_became_empty() -> None:
    shell = Shell(SHORT)
    (first,) = shell.stable_group()
    shell.commit(1, generation_id=1, member_id=first)
    for _ in range(RETENTION_MS // 5_000 + 10):
        shell.heartbeat(first, 1)
        shell.advance(5_000)
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert shell.fetch() == (1, E.NONE)
    shell.leave(first)
    left_ms = shell.now_ms
    shell.restart()
    for now_ms, expected in ((left_ms + RETENTION_MS - 1, 1), (left_ms + RETENTION_MS, -1)):
        shell.run(expire_offsets(shell.shard, now_ms))
        assert shell.fetch() == (expected, E.NONE)
    assert shell.shard.list_groups() == []


def test_offsets_of_topics_that_stable_consumers_gave_up_expire() -> None:
    shell = Shell(SHORT)
    (first,) = shell.stable_group(session_timeout_ms=1_800_000)
    for topic in ("in", "old"):
        shell.commit(1, topic=topic, generation_id=1, member_id=first)
    shell.run(expire_offsets(shell.shard, shell.now_ms + RETENTION_MS))
    assert fetch_all(shell) == [("in", 0, 1, E.NONE)]
    assert shell.state == "Stable"


@pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocols": (protocol("range", b"?"),)}])
def test_offsets_that_an_active_group_may_need_do_not_expire(fields: dict[str, object]) -> None:
    shell = Shell(SHORT)
    (first,) = shell.stable_group(session_timeout_ms=1_800_000, **fields)
    shell.commit(1, topic="old", generation_id=1, member_id=first)
    shell.run(expire_offsets(shell.shard, shell.now_ms + 2 * RETENTION_MS))
    assert shell.fetch(topic="old") == (1, E.NONE)


def test_a_retention_of_its_own_overrides_the_brokers() -> None:
    shell = Shell(SHORT)
    shell.commit(1, retention_ms=HOUR_MS * 24)
    shell.commit(2, partition=1, retention_ms=5)
    shell.commit(3, partition=2, retention_ms=2**63 - 1)
    shell.restart()
    shell.run(expire_offsets(shell.shard, shell.now_ms + RETENTION_MS))
    assert [entry[1] for entry in fetch_all(shell)] == [0, 2]


def test_the_clock_looks_for_expired_offsets_by_itself() -> None:
    shell = Shell(SHORT)
    shell.commit(1)
    shell.advance(RETENTION_MS + SHORT.offsets_retention_check_interval_ms)
    assert shell.shard.list_groups() == []


def test_an_empty_group_without_offsets_is_removed_but_not_while_an_id_is_out() -> None:
    shell = Shell()
    member_id = shell.join(requires_known_member_id=True).answer.member_id
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert shell.join(member_id).answer.error_code == E.NONE
    shell.leave(member_id)
    shell.run(expire_offsets(shell.shard, shell.now_ms))
    assert shell.shard.list_groups() == []


# --- much to clean up --------------------------------------------------------------------------------------------


def commit_many(shell: Shell, count: int) -> None:
    shell.commit_all("a-topic-with-a-long-name", *(entry(partition, 1) for partition in range(count)))


def test_many_expired_offsets_go_in_several_batches() -> None:
    shell = Shell(SHORT)
    commit_many(shell, 10_000)
    shell.now_ms += RETENTION_MS
    batches = [expire_offsets(shell.shard, shell.now_ms)]
    while batches[-1].records:
        shell.run(batches[-1])
        assert shell.shard.list_groups() or not fetch_all(shell)
        deadline_ms = shell.shard.next_deadline_ms()
        assert deadline_ms is not None and deadline_ms > shell.now_ms, "no busy loop, whatever the log says"
        shell.now_ms = deadline_ms
        batches.append(shell.shard.tick(shell.now_ms))
    sizes = [sum(len(record.key) for record in batch.records) for batch in batches]
    assert len(batches) > 2 and max(sizes) < 300_000
    assert sum(len(batch.records) for batch in batches) == 10_001
    assert shell.shard.list_groups() == []


def test_many_offsets_of_a_deleted_topic_go_in_several_batches_and_soon() -> None:
    shell = Shell()
    commit_many(shell, 10_000)
    shell.commit(7)
    shell.run(shell.shard.topics_deleted([("a-topic-with-a-long-name", ID_1)]))
    assert 1 < len(fetch_all(shell)) < 10_000
    shell.advance(10_000)
    assert fetch_all(shell) == [("in", 0, 7, E.NONE)]


def test_a_deleted_topic_is_forgotten_once_its_offsets_are_gone() -> None:
    """A namesake that is made later may be committed to by clients that do not know topic ids."""
    shell = Shell()
    shell.commit(1)
    shell.run(shell.shard.topics_deleted([("in", ID_1)]))
    shell.commit(2)
    shell.advance(shell.config.offsets_retention_check_interval_ms * 2)
    assert shell.fetch() == (2, E.NONE)


# --- lists -------------------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type() -> None:
    shell = Shell()
    shell.stable_group()
    shell.commit(1, group_id="g2")

    def names(**filters: list[str]) -> set[str]:
        return {group.group_id for group in shell.shard.list_groups(**filters)}

    assert names() == names(types=["classic"]) == names(types=["Classic", "consumer"]) == {GROUP, "g2"}
    assert names(states=["stable"]) == {GROUP}
    assert names(states=["Empty", "Dead"]) == {"g2"}
    assert names(states=["nonsense"]) == names(types=["consumer"]) == names(types=["nonsense"]) == set()
    assert sum(map(len, shell.shard._offsets._committed.values())) == 1


def test_an_unknown_group_is_dead() -> None:
    described = Shell().shard.describe_group("nobody")
    assert (described.group_state, described.error_code) == ("Dead", E.GROUP_ID_NOT_FOUND)
    assert described.error_message is not None and "nobody" in described.error_message


def test_a_group_of_dead_members_keeps_its_offsets() -> None:
    shell = Shell()
    (first,) = shell.stable_group(protocols=[protocol("range", subscription("in"))])
    shell.commit(5, generation_id=1, member_id=first)
    shell.advance(SESSION_MS)
    assert (shell.state, shell.fetch()) == ("Empty", (5, E.NONE))
    assert shell.commit(6) == E.NONE, "an operator may reset the offsets of an empty group"
