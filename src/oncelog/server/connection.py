"""One client's connection: bytes in, frames to the broker, answers out in the order of the requests.

Requests of a connection are served one at a time, as Kafka does: clients rely on the order, and an answer that waits
(a long poll, a parked request) holds back what the same client sent after it. Reading stops while requests wait or
while the client does not take its answers, so neither side's slowness can fill memory: the bounds are
`socket.request.max.bytes` for what comes in and `Unsent` for what goes out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from oncelog.core.promise import Promise
from oncelog.protocol.framing import FrameReader, FrameTooLarge
from oncelog.protocol.primitives import MalformedRequest
from oncelog.server.context import Peer
from oncelog.server.dispatch import Buffers, UnservedRequest

if TYPE_CHECKING:
    from oncelog.server.dispatch import Dispatcher
    from oncelog.server.unsent import Unsent

log = logging.getLogger("oncelog.server")

REQUESTS_PER_TURN_MAX: Final = 100
"""Requests of one connection served before others get their turn, however many of them came in one packet."""


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        frame_max_bytes: int,
        unsent: Unsent,
        accept: Callable[[Connection], bool],
        forget: Callable[[Connection], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._reader = FrameReader(frame_max_bytes)
        self._unsent = unsent
        self._held_bytes = 0
        self._accept = accept
        self._forget = forget
        self._waiting: deque[memoryview] = deque()
        self._awaits_answer = False
        self._is_serving = False
        self._writable = True
        self._reading = True
        self._has_eof = False
        self._transport: asyncio.Transport | None = None
        self._peer = Peer("", "")
        self.address = ""
        self.active = True
        """Set by traffic, cleared by the idle sweep."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        if address:
            self._peer = Peer(str(address[0]), str(transport.get_extra_info("sockname")[0]))
            self.address = f"{address[0]}:{address[1]}"
        self._transport.set_write_buffer_limits(high=self._unsent.connection_max_bytes)
        if not self._accept(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._peer.connected = False
        self._waiting.clear()
        self._hold(0)
        self._forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        try:
            frames = self._reader.buffer_updated(nbytes)
        except FrameTooLarge as error:
            self._refuse(str(error))
            return
        if frames:
            self._waiting.extend(frames)
            self._serve()

    def eof_received(self) -> bool:
        # Answers that are ready are still sent. One that is being waited for is not: nobody can tell a client that
        # only closed its side from one that is gone, and a long poll may last for weeks.
        self._has_eof = True
        return bool(self._waiting) and not self._awaits_answer

    def pause_writing(self) -> None:
        self._writable = False
        if self._transport is not None:
            self._hold(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._writable = True
        self._hold(0)
        self._serve()

    def _hold(self, held_bytes: int) -> None:
        self._unsent.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes

    @property
    def is_waiting(self) -> bool:
        """A request of this client is being served, perhaps for long: it is not idle."""
        return self._awaits_answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _serve(self) -> None:
        if self._is_serving:
            return
        self._is_serving = True
        served = 0
        try:
            while self._waiting and not self._awaits_answer and self._writable and self._transport is not None:
                if served == REQUESTS_PER_TURN_MAX:
                    asyncio.get_running_loop().call_soon(self._serve)
                    break
                served += 1
                self._serve_one(self._waiting.popleft())
        finally:
            self._is_serving = False
        self._set_reading(not self._waiting)
        if self._has_eof and not self._waiting:
            self.close()

    def _serve_one(self, frame: memoryview) -> None:
        try:
            answer = self._dispatcher.serve(frame, self._peer)
        except (MalformedRequest, UnservedRequest) as error:
            self._refuse(str(error))
            return
        except Exception:
            log.exception("a request from %s failed; its connection is closed", self.address)
            self._refuse(None)
            return
        if isinstance(answer, Promise):
            self._awaits_answer = True
            answer.then(self._answer_later)
        else:
            self._send(answer)

    def _answer_later(self, buffers: Buffers | None) -> None:
        self._awaits_answer = False
        self._send(buffers)
        self._serve()

    def _send(self, buffers: Buffers | None) -> None:
        if buffers == []:
            self._refuse("its request could not be answered")
        elif buffers is not None and self._transport is not None:
            self._transport.writelines(buffers)

    def _set_reading(self, wanted: bool) -> None:
        if wanted == self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _refuse(self, reason: str | None) -> None:
        if reason is not None:
            log.warning("closing the connection of %s: %s", self.address, reason)
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
