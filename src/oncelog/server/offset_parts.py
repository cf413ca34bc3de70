"""A large request about offsets of a group in parts, between which others have their turn.

Each offset has a result of its own, so the protocol allows it; offsets of a transaction become visible together anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from oncelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from oncelog.protocol.messages.offset_delete import OffsetDeleteResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

OFFSETS_PER_PART: Final = 100
ANSWERS_PER_STEP: Final = 500
"""Places for results that are made between two turns of others."""

Request = TypeVar("Request", OffsetCommitRequest, TxnOffsetCommitRequest)
Response = TypeVar("Response", OffsetCommitResponse, TxnOffsetCommitResponse)
Message = TypeVar(
    "Message",
    OffsetCommitRequest,
    TxnOffsetCommitRequest,
    OffsetCommitResponse,
    TxnOffsetCommitResponse,
    OffsetDeleteResponse,
)


def parts_of(request: Request, response: Response) -> Iterator[tuple[Request, Response]] | None:
    """Requests with the response to each; None for a request that is small enough to be one."""
    return None if _is_small(request) else zip(_split(request), _split(response), strict=True)


def parts_of_response(response: OffsetDeleteResponse) -> Iterator[OffsetDeleteResponse]:
    """A part without an offset counts too: its group may be refused."""
    return iter([response]) if _is_small(response) else _split(response)


def _is_small(message: Message) -> bool:
    topics = message.topics
    return len(topics) <= OFFSETS_PER_PART and sum([len(topic.partitions) for topic in topics]) <= OFFSETS_PER_PART


def _split(message: Message) -> Iterator[Message]:
    """One part at least. What is noted in the parts of a response is noted in the whole one."""
    part, room = _empty(message), OFFSETS_PER_PART
    for topic in message.topics:
        first = 0
        while first < len(topic.partitions):
            sliced = _slice(topic, first, first + room)
            part.topics.append(sliced)
            room -= len(sliced.partitions)
            first += len(sliced.partitions)
            if not room:
                yield part
                part, room = _empty(message), OFFSETS_PER_PART
    if part.topics or not any(topic.partitions for topic in message.topics):
        yield part


def _empty(message: Message) -> Message:
    """All but the topics."""
    copied = copy.copy(message)
    copied.topics = []
    return copied


def _slice(topic: Any, first: int, last: int) -> Any:
    sliced = copy.copy(topic)
    sliced.partitions = topic.partitions[first:last]
    return sliced
