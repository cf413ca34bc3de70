"""A large request about offsets of a group in parts, between which others have their turn.

Each offset has a result of its own, so the protocol allows it; offsets of a transaction become visible together anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from oncelog.core.promise import Promise, gather
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from oncelog.protocol.messages.offset_delete import OffsetDeleteResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from oncelog.server.turns import Steps, one_by_one

OFFSETS_PER_PART: Final = 100

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


def in_parts(
    request: Request, response: Response, commit: Callable[[Request, Response], Promise[Response]]
) -> Steps[Promise[Response]]:
    """`commit` gets each part of the request, with the part of the response that answers it."""
    if is_small(request):
        return commit(request, response)
    parts = zip(_split(request), _split(response), strict=True)
    committed = yield from one_by_one(lambda part: commit(*part), parts)
    return gather(committed).map(lambda _: response)


def parts_of_response(response: OffsetDeleteResponse) -> Iterator[OffsetDeleteResponse]:
    """At least one part, also without an offset: the group itself may be refused."""
    return iter([response]) if is_small(response) else _split(response)


def is_small(message: Message) -> bool:
    topics = message.topics
    return len(topics) <= OFFSETS_PER_PART and sum([len(topic.partitions) for topic in topics]) <= OFFSETS_PER_PART


def _split(message: Message) -> Iterator[Message]:
    """At least one part. The parts share their partitions with the whole message."""
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
