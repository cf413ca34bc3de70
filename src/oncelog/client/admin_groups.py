"""Consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.arguments import list_of
from oncelog.client.attempts import Attempts
from oncelog.client.cluster import CoordinatorKind
from oncelog.client.errors import error_of
from oncelog.client.offsets import (
    GroupMetadata,
    OffsetAndMetadata,
    Offsets,
    commit_offsets,
    fetch_offsets,
    topic_structs,
)
from oncelog.client.subscription import decode_assignment, decode_subscription
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from oncelog.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from oncelog.protocol.schema import Message

R = TypeVar("R", bound=Message)
Result = tuple[int, str, str | None]
"""A code of an answer, what it is about, and the broker's message."""

CONSUMER_PROTOCOL = "consumer"


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class MemberDescription(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    topics: list[str]
    """Subscribed to; empty for groups that are not consumers."""
    partitions: list[TopicPartition]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: list[MemberDescription]


class GroupAdmin(AdminBase):
    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """The groups of all brokers, optionally only those in given states or of given types."""
        request = ListGroupsRequest(states_filter=list_of("states", states), types_filter=list_of("types", types))
        listings = []
        for node_id, response in await self._ask_everyone(request, ListGroupsResponse):
            raise_first([(response.error_code, f"listing groups of broker {node_id}", None)])
            listings += [
                GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups
            ]
        return sorted(listings)

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members. An unknown group is described as Dead, as Kafka does."""
        descriptions = {}
        for group_id in list_of("groups", group_ids):
            response = await self.cluster.ask_coordinator(
                CoordinatorKind.GROUP,
                group_id,
                DescribeGroupsRequest(groups=[group_id]),
                DescribeGroupsResponse,
                codes=lambda answer: [group.error_code for group in answer.groups],
            )
            coordinator = await self.cluster.coordinator(CoordinatorKind.GROUP, group_id, self._deadline())
            descriptions[group_id] = _describe(response.groups[0], str(coordinator))
        return descriptions

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete empty groups with their offsets."""
        for group_id in list_of("groups", group_ids):
            await self._change(
                group_id,
                DeleteGroupsRequest(groups_names=[group_id]),
                DeleteGroupsResponse,
                lambda answer: [(g.error_code, f"deleting group {g.group_id}", None) for g in answer.results],
            )

    async def _change(
        self,
        group_id: str,
        request: Message,
        response_type: type[R],
        results: Callable[[R], list[Result]],
    ) -> None:
        """Have the coordinator of a group change something. `results` are those of `raise_first`."""
        attempts = Attempts()
        response = await self.cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            group_id,
            request,
            response_type,
            codes=lambda answer: [code for code, _, _ in results(answer)],
            attempts=attempts,
        )
        raise_first(results(response), attempts)

    async def group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group; partitions without one are left out."""
        return await fetch_offsets(self.cluster, group_id, partitions, self._deadline(), require_stable=require_stable)

    async def alter_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Set committed offsets. The group must have no members."""
        await commit_offsets(self.cluster, GroupMetadata(group_id), offsets, self._deadline())

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget committed offsets of topics that no member reads."""
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=topic_structs(
                partitions,
                OffsetDeleteRequestTopic,
                lambda p: OffsetDeleteRequestPartition(partition_index=p.partition),
            ),
        )
        await self._change(
            group_id,
            request,
            OffsetDeleteResponse,
            lambda answer: [
                *_of_all(answer.error_code, f"deleting offsets of group {group_id}"),
                *(
                    (p.error_code, f"deleting the offset of {topic.name}-{p.partition_index} in group {group_id}", None)
                    for topic in answer.topics
                    for p in topic.partitions
                ),
            ],
        )

    async def remove_members(self, group_id: str, member_ids: Iterable[str]) -> None:
        """Make members leave a group, which starts a rebalance."""
        wanted = list_of("members", member_ids)
        request = LeaveGroupRequest(
            group_id=group_id,
            member_id=wanted[0] if wanted else "",
            members=[MemberIdentity(member_id=member_id, reason="removed by an admin") for member_id in wanted],
        )
        await self._change(
            group_id,
            request,
            LeaveGroupResponse,
            lambda answer: [
                *_of_all(answer.error_code, f"removing members of group {group_id}"),
                *((m.error_code, f"removing {m.member_id} of group {group_id}", None) for m in answer.members),
            ],
        )


def _of_all(code: int, what: str) -> list[Result]:
    """The error of the whole request, if it has one. Otherwise only its parts have results."""
    return [(code, what, None)] if code else []


def _describe(group: DescribedGroup, coordinator: str) -> GroupDescription:
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise error_of(group.error_code, f"describing group {group.group_id}: {group.error_message or 'refused'}")
    members = [_member(member, group.protocol_type) for member in group.members]
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, coordinator, members
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    consumer = protocol_type == CONSUMER_PROTOCOL
    metadata, assigned = bytes(member.member_metadata), bytes(member.member_assignment)
    topics = list(decode_subscription(metadata).topics) if consumer and metadata else []
    partitions = decode_assignment(assigned) if consumer and assigned else []
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, topics, partitions
    )
