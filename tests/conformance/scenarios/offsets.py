"""Offsets in transactions: TxnOffsetCommit, pending offsets, stable OffsetFetch, fencing by group member (KIP-447)."""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.scenario import NEW_PROTOCOL, Name, Ref, Scenario, Step
from tests.conformance.steps import (
    add_offsets,
    add_partitions,
    commit_offsets,
    describe,
    end,
    fetch_offsets,
    init,
)

OLD: Final = (0, 1, 2, 3, 4)
"""Versions of clients that send AddOffsetsToTxn; 4 is the first that knows TRANSACTION_ABORTABLE."""
NEW: Final = 5
ALL: Final = (*OLD, NEW)


def served(version: int) -> tuple[int, ...]:
    return NEW_PROTOCOL if version >= NEW else (0, 1, 2)


def open_with_offsets(version: int, offset: int = 7) -> list[Step]:
    steps = [init("P", "x")]
    if version < NEW:
        steps.append(add_offsets("P", "x", "g"))
    return [*steps, commit_offsets("P", "x", "g", offset, version)]


def finish(version: int, commit: bool) -> Step:
    return end("P", "x", 5 if version >= NEW else 3, commit=commit)


def committed(version: int, commit: bool) -> Scenario:
    """Offsets are pending until the end: a stable fetch says so, others show what was committed before."""
    steps = [
        commit_plain("g", 3),
        *open_with_offsets(version),
        fetch_offsets("g"),
        fetch_offsets("g", stable=True),
        describe("x"),
        finish(version, commit),
        fetch_offsets("g", stable=True),
    ]
    name = f"{'committed' if commit else 'aborted'}-v{version}"
    return Scenario(name, steps, transaction_versions=served(version))


def commit_plain(group: str, offset: int, version: int = 8, note: str = "") -> Step:
    """OffsetCommit outside of transactions, without a member."""
    topics = [{"name": Name("t"), "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    fields = {"group_id": Name(group), "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    return Step("offset_commit", version, fields, note=note)


def plain_commit_in_between(commit: bool) -> Scenario:
    """A plain commit after the transactional one wins, whatever becomes of the transaction."""
    steps = [
        *open_with_offsets(3),
        commit_plain("g", 20, note="while pending"),
        fetch_offsets("g"),
        fetch_offsets("g", stable=True),
        finish(3, commit),
        fetch_offsets("g", stable=True),
    ]
    return Scenario(f"plain-commit-in-between-{'commit' if commit else 'abort'}", steps)


def two_transactions() -> Scenario:
    """Two producers have pending offsets of one partition; the later end decides."""
    steps = [
        *open_with_offsets(3, 5),
        init("Q", "y"),
        add_offsets("Q", "y", "g"),
        commit_offsets("Q", "y", "g", 6, 3),
        end("Q", "y"),
        fetch_offsets("g", stable=True),
        fetch_offsets("g"),
        end("P", "x"),
        fetch_offsets("g", stable=True),
    ]
    return Scenario("two-transactions", steps)


def not_added(version: int) -> Scenario:
    """Without AddOffsetsToTxn: refused for old clients, added by the broker for new ones."""
    steps = [
        init("P", "x"),
        commit_offsets("P", "x", "g", 7, version, note="nothing open"),
        add_partitions("P", "x", {"t": [0]}),
        commit_offsets("P", "x", "g", 7, version, note="open, but not with this group"),
        describe("x"),
    ]
    return Scenario(f"not-added-v{version}", steps, transaction_versions=served(version))


def strangers(version: int) -> Scenario:
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_offsets("P", "x", "g"),
        commit_offsets("P", "x", "g", 7, version, epoch=-1, note="stale epoch"),
        commit_offsets("P", "x", "g", 7, version, epoch=1, note="future epoch"),
        commit_offsets("P", "x", "g", 7, version, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        commit_offsets("P", "unknown", "g", 7, version, note="unknown id"),
        commit_offsets("P", "", "g", 7, version, note="empty id"),
        commit_offsets("P", "x", "", 7, version, note="empty group"),
        commit_offsets("P", "x", "g", 7, version, partition=9, note="unknown partition"),
        commit_offsets("P", "x", "g", 7, version, topic="missing", note="unknown topic"),
        commit_offsets("P", "x", "g", 7, version, metadata="m" * 5000, note="metadata too large"),
        commit_offsets("P", "x", "g", -1, version, note="negative offset"),
        commit_offsets("P", "x", "g", 7, version, metadata=None),
        commit_offsets("P", "x", "g", 8, version, epoch=-1, note="stale epoch, after a commit"),
        fetch_offsets("g", stable=True),
        end("P", "x"),
        fetch_offsets("g", stable=True),
    ]
    return Scenario(f"strangers-v{version}", steps, transaction_versions=served(version))


def after_the_end(version: int) -> Scenario:
    """A late commit of offsets must not join the next transaction unseen."""
    steps = [
        *open_with_offsets(version),
        finish(version, True),
        commit_offsets("P", "x", "g", 30, version, note="after the end, same epoch"),
        fetch_offsets("g", stable=True),
    ]
    return Scenario(f"after-the-end-v{version}", steps, transaction_versions=served(version))


def join(group: str, member: Any, *, save: str = "M", instance: str | None = None) -> Step:
    """JoinGroup of one member that will be the leader."""
    fields = {
        "group_id": Name(group),
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
    }
    saved = {f"{save}.member": "member_id", f"{save}.generation": "generation_id"}
    return Step("join_group", 7, fields, save=saved)


def sync(group: str, member: str = "M") -> Step:
    assignment = [{"member_id": Ref(f"{member}.member"), "assignment": b"\0\0\0\0\0\0\0\0\0\0"}]
    fields = {
        "group_id": Name(group),
        "generation_id": Ref(f"{member}.generation"),
        "member_id": Ref(f"{member}.member"),
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": assignment,
    }
    return Step("sync_group", 5, fields)


def members(version: int) -> Scenario:
    """KIP-447: with a generation and a member id, only a current member of the group may commit."""
    generation, member = Ref("M.generation"), Ref("M.member")

    def commit(offset: int, note: str, **more: Any) -> Step:
        return commit_offsets("P", "x", "g", offset, version, note=note, **more)

    steps = [
        join("g", ""),
        join("g", Ref("M.member")),
        sync("g"),
        init("P", "x"),
        add_offsets("P", "x", "g"),
        commit(1, "no generation, no member"),
        commit(2, "the member", generation=generation, member=member),
        commit(3, "old generation", generation=Ref("M.generation", -1), member=member),
        commit(4, "future generation", generation=Ref("M.generation", 1), member=member),
        commit(5, "unknown member", generation=generation, member="somebody"),
        commit(6, "member without generation", member=member),
        commit(7, "generation without member", generation=generation),
        commit(8, "unknown instance", generation=generation, member=member, instance="i"),
        fetch_offsets("g"),
        end("P", "x"),
        fetch_offsets("g"),
    ]
    return Scenario(f"members-v{version}", steps, transaction_versions=served(version))


def static_members(version: int) -> Scenario:
    generation, member = Ref("M.generation"), Ref("M.member")
    steps = [
        join("g", "", instance="i"),
        sync("g"),
        init("P", "x"),
        add_offsets("P", "x", "g"),
        commit_offsets("P", "x", "g", 1, version, generation=generation, member=member, instance="i"),
        commit_offsets(
            "P", "x", "g", 2, version, generation=generation, member="other", instance="i", note="fenced instance"
        ),
        commit_offsets("P", "x", "g", 3, version, generation=generation, member=member, note="without its instance"),
    ]
    return Scenario(f"static-members-v{version}", steps, transaction_versions=served(version))


def missing_group(version: int) -> Scenario:
    """A group that nobody joined: fine without a generation, refused with one."""
    steps = [
        init("P", "x"),
        add_offsets("P", "x", "g"),
        commit_offsets("P", "x", "g", 1, version, generation=3, member="m", note="with a generation"),
        commit_offsets("P", "x", "g", 2, version, note="without"),
        fetch_offsets("g", stable=True),
        end("P", "x"),
        fetch_offsets("g", stable=True),
    ]
    return Scenario(f"missing-group-v{version}", steps, transaction_versions=served(version))


def deleting_while_pending() -> Scenario:
    """A group, or an offset, with something pending in a transaction."""
    delete = Step("delete_groups", 2, {"groups_names": [Name("g")]}, note="while pending")
    offset_delete = Step(
        "offset_delete",
        0,
        {"group_id": Name("g"), "topics": [{"name": Name("t"), "partitions": [{"partition_index": 0}]}]},
    )
    steps = [
        *open_with_offsets(3),
        delete,
        offset_delete,
        fetch_offsets("g", stable=True),
        end("P", "x"),
        fetch_offsets("g", stable=True),
        Step("delete_groups", 2, {"groups_names": [Name("g")]}, note="after the end"),
        fetch_offsets("g", stable=True),
    ]
    return Scenario("deleting-while-pending", steps)


def fetch_versions() -> Scenario:
    """Every version of OffsetFetch on a partition with a committed, one with a pending and none with both."""
    steps = [commit_plain("g", 3), *open_with_offsets(3)]
    steps += [fetch_offsets("g", version) for version in range(1, 11)]
    steps += [fetch_offsets("g", version, stable=True) for version in range(7, 11)]
    steps += [fetch_offsets("nobody", version) for version in range(1, 11)]
    return Scenario("fetch-versions", steps, transaction_versions=(2,))


SCENARIOS: Final = (
    *(committed(version, commit) for version in ALL for commit in (True, False)),
    *(plain_commit_in_between(commit) for commit in (True, False)),
    two_transactions(),
    *(not_added(version) for version in ALL),
    *(strangers(version) for version in ALL),
    *(after_the_end(version) for version in ALL),
    *(members(version) for version in (3, 4, 5)),
    *(static_members(version) for version in (3, 4, 5)),
    *(missing_group(version) for version in (3, 4, 5)),
    deleting_while_pending(),
    fetch_versions(),
)
