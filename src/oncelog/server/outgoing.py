"""A long answer on its way to a client, handed to the transport in pieces.

A transport keeps a buffer until its last byte is sent, and tells only how much of it is left. The kernel takes some
megabytes for a client that reads nothing: such a client would hold all of its answer, and count for next to nothing. So
a transport gets one piece after the other, of a large buffer as a copy, and a buffer of which most is sent is exchanged
for a copy of its rest.

With TLS, what is encrypted lies in a second transport that tells nothing until it is full: pieces are small there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

WHOLE_BYTES_MAX: Final = 1024 * 1024
"""No more is handed over as it is: what a partition has in a usual fetch is not copied."""
PIECE_BYTES: Final = 256 * 1024
TLS_BYTES_MAX: Final = 64 * 1024
TLS_UNREPORTED_BYTES: Final = 2 * TLS_BYTES_MAX
"""What the second transport takes before it tells: as much as loops let it have, and one piece."""


class Outgoing:
    def __init__(self, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        self.whole_bytes_max = whole_bytes_max
        self._piece_bytes = min(PIECE_BYTES, whole_bytes_max)
        self._rest: deque[memoryview] = deque()
        self._first_bytes = 0
        """Memory of the first of them, of which a part may have been sent."""
        self.held_bytes = 0
        """Memory of what is not handed over yet."""

    def __bool__(self) -> bool:
        return bool(self._rest)

    def add(self, buffers: Iterable[bytes | bytearray | memoryview]) -> None:
        """Only when there is nothing left of the last answer."""
        self._rest.extend(memoryview(buffer) for buffer in buffers if buffer)
        self._first_bytes = len(self._rest[0]) if self._rest else 0
        self.held_bytes = sum(map(len, self._rest))

    def clear(self) -> None:
        self._rest.clear()
        self.held_bytes = self._first_bytes = 0

    def take_piece(self) -> list[memoryview]:
        """What comes next. It keeps nothing else in memory."""
        piece: list[memoryview] = []
        room_bytes = self.whole_bytes_max
        while self._rest:
            first = self._rest[0]
            if len(first) == self._first_bytes <= self.whole_bytes_max:
                if len(first) > room_bytes:
                    break
                room_bytes -= len(first)
                piece.append(first)
                self._forget_first()
                continue
            if not piece:
                piece.append(memoryview(bytes(first[: self._piece_bytes])))
                self._rest[0] = first[self._piece_bytes :]
                if not self._rest[0]:
                    self._forget_first()
            break
        return piece

    def shrink(self) -> None:
        """The client takes no more for now: what it has taken of a large buffer is not kept for it."""
        if self._rest and 2 * len(self._rest[0]) <= self._first_bytes:
            self._rest[0] = memoryview(bytes(self._rest[0]))
            self.held_bytes -= self._first_bytes - len(self._rest[0])
            self._first_bytes = len(self._rest[0])

    def _forget_first(self) -> None:
        self._rest.popleft()
        self.held_bytes -= self._first_bytes
        self._first_bytes = len(self._rest[0]) if self._rest else 0
