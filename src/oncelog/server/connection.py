"""One client's connection: bytes in, frames to the broker, answers out in the order of the requests.

Requests of a connection are served one at a time, as Kafka does: clients rely on the order, and an answer that waits
(a long poll, a parked request) holds back what the same client sent after it. Reading stops while requests wait or
while the client does not take its answers, so neither side's slowness can fill memory: one connection holds one request
and one answer, and `MemoryBudget` bounds what all of them hold together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

from oncelog.core.promise import Promise
from oncelog.protocol.framing import RECEIVE_BUFFER_BYTES, FrameReader, FrameTooLarge
from oncelog.protocol.primitives import MalformedRequest
from oncelog.server import audit
from oncelog.server.context import Peer, hold_nothing
from oncelog.server.dispatch import Buffers, LastAnswer, UnservedRequest
from oncelog.server.memory_budget import UNSENT_BYTES_MAX, uses
from oncelog.server.outgoing import TLS_BYTES_MAX, TLS_UNREPORTED_BYTES, Outgoing

if TYPE_CHECKING:
    from oncelog.core.clock import Scheduler, Timer
    from oncelog.security.principal_mapping import PrincipalMapping
    from oncelog.server.connection_limits import Admission
    from oncelog.server.dispatch import Front
    from oncelog.server.memory_budget import MemoryBudget

log = logging.getLogger("oncelog.server")

TURN_MS_MAX: Final = 1
"""After this time others get their turn, however many requests of a connection came in one packet."""
FRAMES_AT_ONCE: Final = 16
"""More requests than there are in flight from a usual client."""
LOGIN_MS_MAX: Final = 30_000
"""From the connection to the end of the login."""


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        front: Front,
        *,
        frame_max_bytes: int,
        login_max_bytes: int | None = None,
        listener: str = "PLAINTEXT",
        mapping: PrincipalMapping | None = None,
        budget: MemoryBudget,
        scheduler: Scheduler,
        accept: Callable[[Connection], Admission],
        forget: Callable[[Connection], None],
    ) -> None:
        self._front = front
        self._frame_max_bytes = frame_max_bytes
        self._reader = FrameReader(
            frame_max_bytes if login_max_bytes is None else login_max_bytes,
            FRAMES_AT_ONCE,
            lambda: not budget.is_exceeded,
        )
        self._must_log_in = login_max_bytes is not None
        self.listener = listener
        self._mapping = mapping
        self._login_timer: Timer | None = None
        self._budget = budget
        self._scheduler = scheduler
        self._outgoing = Outgoing()
        self._handed_bytes = 0
        """What the transport was given last."""
        self._unreported_bytes = 0
        """What it may keep beside that."""
        self._unsent_bytes = 0
        """What the client does not take keeps so much in memory."""
        self._request_bytes = 0
        """Of a large request that is being served."""
        self._work_bytes = 0
        """An estimate of what a large request or a long answer take as objects."""
        self._waiting_bytes = 0
        """Of a large request that waits for its turn."""
        self._frame_bytes = 0
        """Set aside for a large frame that is being received."""
        self._waits_for_room = False
        self._unmute_timer: Timer | None = None
        self._accept = accept
        self._forget = forget
        self._waiting: deque[memoryview] = deque()
        self._awaits_answer = False
        self._is_serving = False
        self._writable = True
        self._reading = True
        self._has_eof = False
        self._is_refused = False
        self._transport: asyncio.Transport | None = None
        self._admission: Admission | None = None
        self._peer = Peer("", "")
        self.address = self.host = ""
        self.active = True
        """Set by traffic, cleared by the idle sweep."""
        self.last_use = next(uses)
        """Larger than that of those that were used before."""

    def admit(self, ours: tuple[str, int] | None, theirs: tuple[str, int] | None) -> Admission:
        """Whether there may be one more connection. `ours` and `theirs` are the addresses of its two ends."""
        if ours and theirs:
            self._peer = Peer(str(theirs[0]), str(ours[0]))
            self._peer.listener, self._peer.is_known = self.listener, not self._must_log_in
            self.address, self.host = f"{theirs[0]}:{theirs[1]}", str(theirs[0])
        self._peer.add_work_bytes = self._add_work_bytes
        self._admission = self._accept(self)
        return self._admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if transport.get_extra_info("ssl_object") is not None:
            self._outgoing, self._unreported_bytes = Outgoing(TLS_BYTES_MAX), TLS_UNREPORTED_BYTES
        admission = self._admission
        delay_ms = 0
        if admission is None:
            admission = self.admit(transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
            delay_ms = admission.delay_ms
        if admission.refusal is not None:
            self._end_refused(admission.delay_ms)
            return
        if delay_ms:
            self._mute(delay_ms)
            self._scheduler.call_later_ms(0, self._pause_again)
        if self._mapping is not None:
            self._identify(self._mapping)
        elif self._must_log_in:
            self._login_timer = self._scheduler.call_later_ms(LOGIN_MS_MAX, self._end_unless_known)

    def _pause_again(self) -> None:
        """uvloop begins to read after `connection_made`, whatever was said in it."""
        if self._transport is not None and not self._reading and not self._transport.is_closing():
            self._transport.pause_reading()

    def _end_refused(self, delay_ms: int) -> None:
        """Nothing of what it says is served until then."""
        self._is_refused = True
        if delay_ms:
            self._set_reading(False)
            self._scheduler.call_later_ms(0, self._pause_again)
            self._scheduler.call_later_ms(delay_ms, lambda: self._refuse(None))
        else:
            self._refuse(None)

    def _identify(self, mapping: PrincipalMapping) -> None:
        """Give the client the principal of its certificate, if it has one."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if not certificate:
            return
        from oncelog.security.distinguished_name import MalformedCertificate, subject_name
        from oncelog.security.principal_mapping import UnmappedName

        try:
            self._peer.principal = f"User:{mapping.user_of(subject_name(certificate))}"
        except (MalformedCertificate, UnmappedName) as error:
            audit.tell_failed_login(self.host, self.listener, audit.CERTIFICATE, str(error))
            self._refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget_timer()
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        self._peer.connected = False
        self._waiting.clear()
        self._outgoing.clear()
        self._reader.close()
        self._budget.forget(self)
        self._frame_bytes = self._waiting_bytes = self._unsent_bytes = 0
        if not self._awaits_answer:
            self._let_go_of_request()  # else it is in memory until it is served
        self._hold()
        self._forget(self)
        self._peer.on_gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        self.last_use = next(uses)
        if self._is_refused:
            return
        reader = self._reader
        try:
            frames = reader.buffer_updated(nbytes)
        except FrameTooLarge as error:
            self._refuse(str(error))
            return
        if reader.frame_bytes != self._frame_bytes or reader.needs_room:
            self._note_frame_memory(frames)
        if frames:
            self._waiting.extend(frames)
            self._serve()
        elif self._waits_for_room:
            self._set_reading(False)

    def _take_more(self) -> bool:
        """Whether there are further requests among what was received."""
        try:
            frames = self._reader.take_more()
        except FrameTooLarge as error:
            self._refuse(str(error))
            return False
        self._note_frame_memory(frames)
        self._waiting.extend(frames)
        return bool(frames)

    @property
    def _has_requests(self) -> bool:
        """That were received, and wait to be served."""
        return bool(self._waiting) or self._reader.has_more

    def _note_frame_memory(self, frames: list[memoryview]) -> None:
        self._frame_bytes = self._reader.frame_bytes
        for frame in frames:
            if len(frame) > RECEIVE_BUFFER_BYTES:
                self._waiting_bytes += len(frame)
        self._hold()
        self._waits_for_room = self._reader.needs_room or (bool(self._frame_bytes) and self._budget.is_exceeded)
        if self._waits_for_room:
            self._budget.wait_for_room(self)

    def eof_received(self) -> bool:
        # Answers that are ready are still sent. One that is being waited for is not: nobody can tell a client that
        # only closed its side from one that is gone, and a long poll may last for weeks.
        self._has_eof = True
        return bool(self._outgoing) or (self._has_requests and not self._awaits_answer)

    def pause_writing(self) -> None:
        self._writable = False
        self._outgoing.shrink()
        before_bytes, self._unsent_bytes = self._unsent_bytes, self._kept_bytes()
        self._hold()
        if self._unsent_bytes > before_bytes:  # else the client goes on with its answer
            self._budget.make_room()

    def _kept_bytes(self) -> int:
        return self._unreported_bytes + self._handed_bytes + self._outgoing.held_bytes

    def resume_writing(self) -> None:
        self._writable = self.active = True
        self._send_on()
        if self._writable:
            self._unsent_bytes = 0
            self._hold()
            self._serve()

    def _hold(self) -> None:
        held_bytes = self._frame_bytes + self._waiting_bytes + self._request_bytes + self._unsent_bytes
        self._budget.hold(self, held_bytes + self._work_bytes)

    def _add_work_bytes(self, work_bytes: int) -> None:
        self._work_bytes += work_bytes
        self._hold()

    def _let_go_of_request(self) -> None:
        self._request_bytes = self._work_bytes = 0
        if self._transport is None:
            self._peer.add_work_bytes = hold_nothing  # so that nothing keeps this object in memory

    def go_on(self) -> None:
        self._waits_for_room = False
        if self._reader.needs_room:
            self._take_more()
        self._set_reading(not self._has_requests and not self._waits_for_room and self._unmute_timer is None)

    def has_stalled_since(self, use: int) -> bool:
        return bool(self._frame_bytes) and self.last_use < use

    def give_up(self, reason: str) -> None:
        self._peer.connected = False  # what is done for it ends
        self._refuse(reason)
        self._reader.close()  # now: the loop tells of its end in a later turn
        self._frame_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """A request of this client is being served, perhaps for long: it is not idle."""
        return self._awaits_answer

    @property
    def is_made(self) -> bool:
        """Whether it is open: its handshake is over, and it has not ended."""
        return self._transport is not None

    def close(self) -> None:
        if self._transport is None:
            return
        if self._outgoing:
            self._transport.abort()  # a part of an answer is of no use
        else:
            self._transport.close()

    def _serve(self) -> None:
        if self._is_serving:
            return
        self._is_serving = True
        waiting, reader = self._waiting, self._reader
        end_ms = self._scheduler.monotonic_ms() + TURN_MS_MAX if len(waiting) > 1 or reader.has_more else 0
        try:
            while (
                not self._awaits_answer
                and self._writable
                and self._unmute_timer is None
                and (transport := self._transport) is not None
                and not transport.is_closing()
                and (waiting or (reader.has_more and self._take_more()))
            ):
                self._serve_one(waiting.popleft())
                if (waiting or reader.has_more) and self._scheduler.monotonic_ms() > end_ms:
                    self._scheduler.call_later_ms(0, self._serve)
                    break
        finally:
            self._is_serving = False
        has_requests = bool(waiting) or reader.has_more
        may_read = not has_requests and not self._waits_for_room and self._unmute_timer is None
        if may_read != self._reading:
            self._set_reading(may_read)
        if self._has_eof and not has_requests and not self._outgoing:
            self.close()

    def _mute(self, delay_ms: int) -> None:
        """Nothing is read for a while: what quotas ask of the client."""
        self._peer.throttle_ms = 0
        if self._unmute_timer is None:
            self._unmute_timer = self._scheduler.call_later_ms(delay_ms, self._unmute)
            self._set_reading(False)

    def _unmute(self) -> None:
        self._unmute_timer = None
        self.active = True
        self._serve()

    def _serve_one(self, frame: memoryview) -> None:
        if len(frame) > RECEIVE_BUFFER_BYTES:  # it did not fit into the buffer that every connection has
            self._waiting_bytes -= len(frame)
            self._request_bytes = len(frame)
        try:
            answer = self._front.serve(frame, self._peer)
            if self._must_log_in and self._peer.is_known:
                self._log_in()
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
        if self._request_bytes or self._work_bytes:
            self._let_go_of_request()
            self._hold()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if isinstance(buffers, LastAnswer):
            self._send_last(buffers)
        elif buffers:
            self._hand_over(transport, buffers)
        elif buffers is not None:
            self._refuse("its request could not be answered")
        if self._peer.throttle_ms:
            self._mute(self._peer.throttle_ms)

    def _hand_over(self, transport: asyncio.Transport, buffers: Buffers) -> None:
        size_bytes = sum(map(len, buffers))
        if size_bytes <= self._outgoing.whole_bytes_max:
            self._handed_bytes = size_bytes
            transport.writelines(buffers)
        else:
            self._outgoing.add(buffers)
            self._send_on()

    def _send_on(self) -> None:
        """Send as much as the client takes at once."""
        while self._outgoing and self._writable and (transport := self._transport) is not None:
            piece = self._outgoing.take_piece()
            self._handed_bytes = sum(map(len, piece))
            transport.writelines(piece)

    def _send_last(self, buffers: LastAnswer) -> None:
        self._waiting.clear()
        if self._transport is not None:
            if buffers:
                self._transport.writelines(buffers)
            self._transport.close()

    def _log_in(self) -> None:
        self._must_log_in = False
        self._reader.max_frame_bytes = self._frame_max_bytes
        self._forget_timer()

    def _forget_timer(self) -> None:
        """Cancel the timer: it would keep this connection and its buffer in memory, and there may be thousands at a
        time."""
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None

    def _end_unless_known(self) -> None:
        self._refuse(f"it did not log in within {LOGIN_MS_MAX // 1000} s")

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
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()


def close_idle(connections: Iterable[Connection]) -> None:
    """Close connections that were silent since the last call: after one to two intervals between calls."""
    for connection in list(connections):
        if connection.active:
            connection.active = connection.is_waiting
        else:
            connection.close()
