"""Classic consumer groups on the wire: joining, synchronising, heartbeats, leaving, static members, offsets,
administration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.conformance.scenario import Name, Ref, Scenario, Step

ANY_TV: Final = (2,)
"""Groups do not depend on transaction.version."""
SUBSCRIPTION: Final = b"\0\0\0\0\0\0\0\0\0\0"


def join(
    member: str,
    version: int = 7,
    *,
    member_id: Any = "",
    instance: str | None = None,
    protocols: Sequence[str] = ("range",),
    protocol_type: str = "consumer",
    session_ms: int = 60_000,
    rebalance_ms: int = 60_000,
    group: Any = "g",
    metadata: bytes = SUBSCRIPTION,
    connection: str = "main",
    answered: bool = True,
    note: str = "",
) -> Step:
    fields: dict[str, Any] = {
        "group_id": Name(group) if group else group,
        "session_timeout": session_ms,
        "member_id": member_id,
        "protocol_type": protocol_type,
        "protocols": [{"name": name, "metadata": metadata} for name in protocols],
    }
    if version >= 1:
        fields["rebalance_timeout"] = rebalance_ms
    if version >= 5:
        fields["group_instance_id"] = instance
    saved = {f"{member}.member": "member_id", f"{member}.generation": "generation_id"}
    return Step("join_group", version, fields, save=saved, connection=connection, answered=answered, note=note)


def joined(member: str, version: int = 7, **more: Any) -> list[Step]:
    """Join as clients of today do: once for the member id, once with it."""
    if version < 4 or more.get("instance"):
        return [join(member, version, **more)]
    return [join(member, version, **more), join(member, version, member_id=Ref(f"{member}.member"), **more)]


def sync(
    member: str,
    version: int = 5,
    *,
    assigned: Sequence[str] = (),
    generation: int = 0,
    member_id: Any = None,
    instance: str | None = None,
    protocol: str = "range",
    note: str = "",
) -> Step:
    assignments = [{"member_id": Ref(f"{name}.member"), "assignment": name.encode()} for name in assigned]
    fields: dict[str, Any] = {
        "group_id": Name("g"),
        "generation_id": Ref(f"{member}.generation", generation),
        "member_id": Ref(f"{member}.member") if member_id is None else member_id,
        "assignments": assignments,
    }
    if version >= 3:
        fields["group_instance_id"] = instance
    if version >= 5:
        fields |= {"protocol_type": "consumer", "protocol_name": protocol}
    return Step("sync_group", version, fields, note=note)


def heartbeat(
    member: str,
    version: int = 4,
    *,
    generation: int = 0,
    member_id: Any = None,
    instance: str | None = None,
    group: Any = "g",
    note: str = "",
) -> Step:
    fields: dict[str, Any] = {
        "group_id": Name(group) if group else group,
        "generation_id": Ref(f"{member}.generation", generation),
        "member_id": Ref(f"{member}.member") if member_id is None else member_id,
    }
    if version >= 3:
        fields["group_instance_id"] = instance
    return Step("heartbeat", version, fields, note=note)


def leave(version: int, *members: tuple[Any, str | None], note: str = "") -> Step:
    fields: dict[str, Any] = {"group_id": Name("g")}
    if version < 3:
        fields["member_id"] = members[0][0]
    else:
        fields["members"] = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
    return Step("leave_group", version, fields, note=note)


def commit(
    offset: int,
    version: int = 8,
    *,
    member: str | None = None,
    generation: int = 0,
    member_id: Any = None,
    partition: int = 0,
    topic: str = "t",
    metadata: str | None = "",
    group: Any = "g",
    note: str = "",
) -> Step:
    entry = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    named: dict[str, Any] = {"topic_id": Ref(f"{topic}.id")} if version >= 10 else {"name": Name(topic)}
    default_id: Any = Ref(f"{member}.member") if member else ""
    fields = {
        "group_id": Name(group) if group else group,
        "generation_id_or_member_epoch": Ref(f"{member}.generation", generation) if member else -1,
        "member_id": default_id if member_id is None else member_id,
        "topics": [{**named, "partitions": [entry]}],
    }
    return Step("offset_commit", version, fields, note=note)


def fetched(version: int = 7, *, group: str = "g", note: str = "") -> Step:
    named: dict[str, Any] = {"topic_id": Ref("t.id")} if version >= 10 else {"name": Name("t")}
    fields: dict[str, Any] = {"group_id": Name(group), "topics": [{**named, "partition_indexes": [0, 1, 9]}]}
    return Step("offset_fetch", version, {"groups": [fields]} if version >= 8 else fields, note=note)


def described(version: int = 5, group: Any = "g", note: str = "") -> Step:
    return Step("describe_groups", version, {"groups": [Name(group) if group else group]}, note=note)


def deleted(*groups: str, version: int = 2, note: str = "") -> Step:
    return Step("delete_groups", version, {"groups_names": [Name(group) for group in groups]}, note=note)


def one_member(join_version: int, sync_version: int, other_version: int) -> Scenario:
    """The life of a group with one member, at given versions."""
    steps = [
        described(note="before"),
        *joined("M", join_version),
        described(note="joined"),
        sync("M", sync_version, assigned=["M"]),
        described(note="stable"),
        heartbeat("M", min(other_version, 4)),
        commit(5, member="M"),
        fetched(),
        join("M", join_version, member_id=Ref("M.member"), note="again, unchanged: the leader starts a rebalance"),
        heartbeat("M", min(other_version, 4)),
        sync("M", sync_version, assigned=["M"]),
        leave(other_version, (Ref("M.member"), None)),
        described(note="left"),
        heartbeat("M", min(other_version, 4), note="after leaving"),
        deleted("g"),
        described(note="deleted"),
    ]
    return Scenario(f"one-member-j{join_version}-s{sync_version}-o{other_version}", steps, transaction_versions=ANY_TV)


def refused_joins() -> Scenario:
    steps = []
    for version in (0, 2, 4, 5, 7, 9):
        steps += [
            join("X", version, group="", note="empty group"),
            join("X", version, session_ms=1, note="session too short"),
            join("X", version, session_ms=100_000_000, note="session too long"),
            join("X", version, member_id="somebody", note="unknown member"),
            join("X", version, protocols=(), note="no protocols"),
            join("X", version, protocol_type="", note="no protocol type"),
        ]
    steps += [
        *joined("M"),
        sync("M", assigned=["M"]),
        join("X", protocols=("sticky",), note="no protocol in common"),
        join("X", protocol_type="connect", note="another protocol type"),
        join("X", member_id="somebody", note="unknown member of a live group"),
        described(),
    ]
    return Scenario("refused-joins", steps, transaction_versions=ANY_TV)


def strangers() -> Scenario:
    """Requests with a wrong generation, an unknown member or an unknown group."""
    steps = [*joined("M"), sync("M", assigned=["M"])]
    for version in (0, 3, 4):
        steps += [
            heartbeat("M", version, generation=1, note="future generation"),
            heartbeat("M", version, generation=-1, note="old generation"),
            heartbeat("M", version, member_id="somebody", note="unknown member"),
            heartbeat("M", version, member_id="", note="empty member"),
            heartbeat("M", version, group="nobody", note="unknown group"),
            heartbeat("M", version, group="", note="empty group"),
        ]
    for version in (0, 3, 5):
        steps += [
            sync("M", version, generation=1, note="future generation"),
            sync("M", version, member_id="somebody", note="unknown member"),
        ]
    steps.append(sync("M", 5, protocol="other", note="another protocol"))
    for version in (2, 5, 7, 8, 9, 10):
        steps += [
            commit(1, version, member="M", generation=1, note="future generation"),
            commit(1, version, member="M", generation=-1, note="old generation"),
            commit(1, version, member="M", member_id="somebody", note="unknown member"),
            commit(1, version, note="no member, live group"),
            commit(1, version, group="", note="empty group"),
            commit(1, version, member="M", group="nobody", note="unknown group with a generation"),
        ]
    for version in (0, 2):
        steps.append(leave(version, ("somebody", None), note="unknown member"))
    for version in (3, 5):
        steps += [
            leave(version, ("somebody", None), ("", "instance"), note="unknown members"),
            leave(version, note="nobody"),
        ]
    return Scenario("strangers", [*steps, described()], transaction_versions=ANY_TV)


def simple_commits() -> Scenario:
    """Offsets of a group without members, and what is wrong with some of them."""
    steps = [
        *(commit(version, version, note="no member") for version in range(2, 11)),
        fetched(),
        commit(7, partition=9, note="unknown partition"),
        commit(7, topic="missing", note="unknown topic"),
        commit(8, metadata="m" * 4097, note="metadata too large"),
        commit(8, metadata="m" * 4096, note="metadata at its limit"),
        commit(9, metadata=None, note="no metadata"),
        commit(-1, note="negative offset"),
        *(fetched(version) for version in range(1, 11)),
        *(fetched(version, group="nobody", note="unknown group") for version in (1, 2, 5, 7, 8, 10)),
        *(Step("offset_fetch", v, {"group_id": Name("g"), "topics": None}, note="all") for v in range(2, 8)),
        Step("offset_fetch", 8, {"groups": [{"group_id": Name("g"), "topics": None}]}, note="all"),
        described(),
        deleted("g", "nobody"),
        fetched(),
    ]
    return Scenario("simple-commits", steps, transaction_versions=ANY_TV)


def offsets_deleted() -> Scenario:
    def delete(partition: int = 0, group: str = "g", topic: str = "t", note: str = "") -> Step:
        topics = [{"name": Name(topic), "partitions": [{"partition_index": partition}]}]
        return Step("offset_delete", 0, {"group_id": Name(group), "topics": topics}, note=note)

    steps = [
        commit(5),
        commit(6, partition=1),
        delete(note="simple group"),
        delete(note="again"),
        delete(partition=9, note="unknown partition"),
        delete(topic="missing", note="unknown topic"),
        delete(group="nobody", note="unknown group"),
        fetched(),
    ]
    return Scenario("offsets-deleted", steps, transaction_versions=ANY_TV)


def static_member() -> Scenario:
    """A static member that comes back takes its place without a rebalance and fences its former self."""
    steps = [
        join("M", instance="i"),
        sync("M", assigned=["M"], instance="i"),
        heartbeat("M", instance="i"),
        join("N", instance="i", note="comes back"),
        heartbeat("M", instance="i", note="former self"),
        heartbeat("N", instance="i"),
        sync("N", instance="i"),
        join("X", instance="i", member_id=Ref("M.member"), note="former self joins"),
        commit(4, member="M", note="former self, no instance given"),
        described(),
        leave(5, ("", "i"), ("", "j"), note="removed by its instance"),
        described(note="after leaving"),
    ]
    return Scenario("static-member", steps, transaction_versions=ANY_TV)


def two_members() -> Scenario:
    """A second member joins: the first is told by its heartbeat and joins again, both get their assignment."""
    second = join("N", connection="other", member_id=Ref("N.member"), answered=False, note="waits for the first")
    steps = [
        *joined("M"),
        sync("M", assigned=["M"]),
        join("N", connection="other", note="for the member id"),
        second,
        # The unanswered request has been taken once the group is seen rebalancing.
        Step("describe_groups", 5, {"groups": [Name("g")]}, until={"groups.0.group_state": "PreparingRebalance"}),
        heartbeat("M", note="a rebalance is under way"),
        commit(3, member="M", note="during the rebalance"),
        join("M", member_id=Ref("M.member"), note="the first joins again"),
        described(note="both joined"),
        heartbeat("M", note="before the assignment"),
    ]
    return Scenario("two-members", steps, transaction_versions=ANY_TV)


def session_ends() -> Scenario:
    """A member that is not heard of any more is removed."""
    gone = Step(
        "describe_groups", 5, {"groups": [Name("g")]}, until={"groups.0.group_state": "Empty"}, note="until empty"
    )
    steps = [*joined("M", session_ms=2500), sync("M", assigned=["M"]), gone, heartbeat("M"), commit(1, member="M")]
    return Scenario("session-ends", steps, transaction_versions=ANY_TV)


def listed() -> Scenario:
    """ListGroups with its filters; other groups are left out of the transcript by the group's own state and type."""
    steps = [*joined("M"), sync("M", assigned=["M"])]
    steps += [described(version) for version in range(7)]
    steps += [described(5, "nobody"), described(6, "nobody")]
    asked = {"groups": [Name("g"), Name("nobody")], "include_authorized_operations": True}
    steps += [Step("describe_groups", version, asked, note="operations") for version in (5, 6)]
    # Other scenarios may have committed for the empty group before: now it is there in any case.
    steps += [commit(1, group="", note="empty group"), described(5, "", note="empty")]
    return Scenario("described", steps, transaction_versions=ANY_TV)


SCENARIOS: Final = (
    *(one_member(*versions) for versions in ((0, 0, 0), (2, 1, 1), (4, 2, 2), (5, 3, 3), (7, 5, 4), (9, 5, 5))),
    refused_joins(),
    strangers(),
    simple_commits(),
    offsets_deleted(),
    static_member(),
    two_members(),
    session_ends(),
    listed(),
)
