"""A large commit of offsets in parts, between which others have their turn.

Each offset has a result of its own, so the protocol allows it; offsets of a transaction become visible together anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from oncelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

OFFSETS_PER_PART: Final = 100
ANSWERS_PER_STEP: Final = 500
"""Places for results that are made between two turns of others."""

Request = TypeVar("Request", OffsetCommitRequest, TxnOffsetCommitRequest)
Response = TypeVar("Response", OffsetCommitResponse, TxnOffsetCommitResponse)


def parts_of(request: Request, response: Response) -> Iterator[tuple[Request, Response]] | None:
    """Requests with the response to each; None for a request that is small enough to be one.

    What is noted in the responses is noted in the whole one.
    """
    topics = request.topics
    if len(topics) <= OFFSETS_PER_PART and sum([len(topic.partitions) for topic in topics]) <= OFFSETS_PER_PART:
        return None
    return _parts_of(request, response)


def _parts_of(request: Request, response: Response) -> Iterator[tuple[Request, Response]]:
    part, answer, room = _empty(request), _empty(response), OFFSETS_PER_PART
    for topic, answered in zip(request.topics, response.topics, strict=True):
        first = 0
        while first < len(topic.partitions):
            last = first + room
            part.topics.append(_slice(topic, first, last))
            answer.topics.append(_slice(answered, first, last))
            room -= len(topic.partitions[first:last])
            first = last
            if not room:
                yield part, answer
                part, answer, room = _empty(request), _empty(response), OFFSETS_PER_PART
    if part.topics:
        yield part, answer


M = TypeVar("M", OffsetCommitRequest, TxnOffsetCommitRequest, OffsetCommitResponse, TxnOffsetCommitResponse)


def _empty(message: M) -> M:
    """All but the topics."""
    copied = copy.copy(message)
    copied.topics = []
    return copied


def _slice(topic: Any, first: int, last: int) -> Any:
    sliced = copy.copy(topic)
    sliced.partitions = topic.partitions[first:last]
    return sliced
