"""Large requests, by their bytes or by their elements: decoded by a worker, one after the other, and counted as the
objects that they become.

A number of four bytes takes forty as an object. So what a request takes is estimated when it is decoded, and held
against the memory budget until its answer is sent. While half of the budget is held, they are served one at a time.
What is no large request counts too while it waits for its answer: there may be thousands of connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Field, Message

if TYPE_CHECKING:
    from oncelog.core.worker import OneAtATime
    from oncelog.server.context import Peer
    from oncelog.server.dispatch import Buffers
    from oncelog.server.memory_budget import MemoryBudget

_OBJECT_BYTES: Final = 56
_FIELD_BYTES: Final = 8
_LIST_BYTES: Final = 64
_NUMBER_BYTES: Final = 32
_TEXT_BYTES: Final = 64
"""Without its characters, which are as many as bytes of the frame."""

MAY_WAIT: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Their answers may be long in coming, and others do not wait for that."""


class _Waiting(NamedTuple):
    key: ApiKey
    peer: Peer
    decode: Callable[[], Any]
    answer: Callable[[Any], Promise[Buffers | None]]
    promise: Promise[Buffers | None]


class LargeRequests:
    def __init__(self, worker: OneAtATime, budget: MemoryBudget) -> None:
        self._worker = worker
        self._budget = budget
        self._waiting: deque[_Waiting] = deque()
        self._is_decoding = False
        self._in_service = 0
        budget.on_freed = self._go_on

    def serve(
        self,
        key: int,
        peer: Peer,
        decode: Callable[[], Any],
        answer: Callable[[Any], Promise[Buffers | None]],
    ) -> Promise[Buffers | None]:
        """`answer` gets the message, or the error of decoding it."""
        promise: Promise[Buffers | None] = Promise()
        self._waiting.append(_Waiting(ApiKey(key), peer, decode, answer, promise))
        self._go_on()
        return promise

    def count(self, message: Any, peer: Peer) -> None:
        """Of a request that is not large, and stays in memory for a while."""
        if isinstance(message, Message):
            peer.add_work_bytes(memory_of(message) + peer.request_bytes)
            self._budget.make_room()

    def _go_on(self) -> None:
        while self._waiting and not self._is_decoding and not (self._in_service and self._budget.is_half_held):
            self._begin(self._waiting.popleft())

    def _begin(self, request: _Waiting) -> None:
        if not request.peer.connected and request.key != ApiKey.PRODUCE:
            request.promise.resolve([])  # nobody waits for it any more, and nothing of it was done
            return
        self._is_decoding = True
        may_wait = request.key in MAY_WAIT
        self._in_service += not may_wait

        def decoded(result: tuple[Any, int] | Exception) -> None:
            self._is_decoding = False
            message: Any = result
            if isinstance(result, tuple):
                message, held_bytes = result
                request.peer.add_work_bytes(held_bytes + request.peer.request_bytes)
                self._budget.make_room()
            request.answer(message).then(answered)
            self._go_on()

        def answered(result: Buffers | None) -> None:
            self._in_service -= not may_wait
            request.promise.resolve(result)
            self._go_on()

        def decode() -> tuple[Any, int]:
            message = request.decode()
            return message, memory_of(message) if isinstance(message, Message) else 0

        self._worker.run(decode).then(decoded)


def memory_of(message: Message) -> int:
    """An upper bound, without the characters of texts. Small numbers, which Python shares, are counted too."""
    own_bytes, arrays = _plan_of(type(message))
    total_bytes = own_bytes
    for name, element_bytes, has_arrays in arrays:
        elements = getattr(message, name)
        if not elements:
            continue
        total_bytes += _LIST_BYTES + _FIELD_BYTES * len(elements)
        total_bytes += sum(map(memory_of, elements)) if has_arrays else element_bytes * len(elements)
    return total_bytes


@cache
def _plan_of(cls: type[Message]) -> tuple[int, tuple[tuple[str, int, bool], ...]]:
    """The memory of a message itself, and its arrays: name, memory of an element, whether that has arrays too."""
    own_bytes, arrays = _OBJECT_BYTES, []
    for name, field in cls.FIELDS.items():
        own_bytes += _FIELD_BYTES
        if field.kind == "array" and field.element is not None:
            own_bytes += _LIST_BYTES
            struct = field.element.struct
            arrays.append((name, _value_bytes(field.element), struct is not None and bool(_plan_of(struct)[1])))
        else:
            own_bytes += _value_bytes(field)
    return own_bytes, tuple(arrays)


def _value_bytes(field: Field) -> int:
    """Memory of a value, about, without that of the reference to it."""
    if field.struct is not None:
        return _plan_of(field.struct)[0]
    if field.kind == "boolean":
        return 0
    return _TEXT_BYTES if field.kind in ("string", "bytes", "records", "uuid") else _NUMBER_BYTES
