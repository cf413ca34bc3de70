"""Answers of the group coordinator that say no. All others are made where they are decided."""

from __future__ import annotations

from typing import Any, TypeVar

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.delete_groups import DeletableGroupResult
from oncelog.protocol.messages.join_group import JoinGroupResponse
from oncelog.protocol.messages.offset_commit import OffsetCommitResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse

OffsetsCommitted = TypeVar("OffsetsCommitted", bound=OffsetCommitResponse | TxnOffsetCommitResponse)


def join_refused(error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, protocol_name=None, member_id=member_id)


def offsets_refused(response: OffsetsCommitted, error: ErrorCode) -> OffsetsCommitted:
    """Every partition gets the error that has none yet."""
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or error
    return response


def not_committed(response: Any, error: ErrorCode) -> Any:
    """The same answer when the records that it rests on were not committed. What was an error anyway stays as it is."""
    if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
        return offsets_refused(response, error)
    if response.error_code:
        return response
    if isinstance(response, JoinGroupResponse):
        return join_refused(error)
    if isinstance(response, DeletableGroupResult):
        return DeletableGroupResult(group_id=response.group_id, error_code=error)
    return type(response)(error_code=error)
