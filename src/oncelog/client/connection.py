"""One connection to one broker on an asyncio transport: `wire` says what goes over it.

A broker may end the session of a login (`connections.max.reauth.ms`, or with a token). Before it does, the client logs
in again on the same connection, behind what it has asked. What is asked meanwhile waits until that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError
from oncelog.client.login import log_in
from oncelog.client.wire import Answered, Wire
from oncelog.core.address import Address
from oncelog.core.invariant import invariant
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message

M = TypeVar("M", bound=Message)
SESSION_MS_MIN: Final = 1_300
"""Brokers refuse logins that follow each other within a second. A shorter session ends with its connection."""
RELOGIN_SHARES: Final = (0.85, 0.95)
"""Of the session, when a login is repeated: not by all clients at once."""


_OTHER_NAME: Final = "the broker's certificate needs the address by which clients reach it"
_OTHER_TIME: Final = "the broker needs another certificate, unless the clock of this machine is wrong"
_TRUST_HINTS: Final = {9: _OTHER_TIME, 10: _OTHER_TIME, 62: _OTHER_NAME, 64: _OTHER_NAME}
"""By OpenSSL's codes: not yet valid, expired, for another name, for another address."""


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`, which also learns the broker's versions and features."""

    def __init__(self, config: ClientConfig, host: str, port: int) -> None:
        self.wire = Wire(config, str(Address(host, port)), self._write)
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: asyncio.Future[None] | None = None
        """While the broker does not take what is sent to it: done when it does again."""
        self._behind_login: list[Callable[[], None]] | None = None
        """Requests that wait for a login that is repeated; None while there is none."""
        self._login_timer: asyncio.TimerHandle | None = None
        self._login_task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, config: ClientConfig, host: str, port: int, tls: ssl.SSLContext | None = None) -> Connection:
        """Connect, negotiate and log in. Raises ConnectionLost, or KafkaError if the broker does not let us in."""
        loop = asyncio.get_running_loop()
        timeout_s, address = config.socket_connection_setup_timeout_ms / 1000, Address(host, port)
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(config, host, port), host, port, ssl=tls)
        except TimeoutError:
            raise ConnectionLost(f"{address} did not accept a connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            why, see = (
                error.verify_message.rstrip("."),
                _TRUST_HINTS.get(error.verify_code, "see ssl.truststore.location"),
            )
            text = f"{address} is not trusted: {why}; {see}"
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from error
        except OSError as error:
            why = error.strerror or str(error) or "it has closed the connection"
            hint = "" if tls is None else "; does that listener use TLS?"
            raise ConnectionLost(f"cannot connect to {address}: {why}{hint}") from error
        try:
            await connection._negotiate()
            if config.has_sasl:
                connection._log_in_before(await log_in(connection, config))
        except ConnectionLost as error:
            connection.close(error.message)
            if tls is not None or connection.wire.versions:
                raise
            raise ConnectionLost(f"{error.message}; is that a listener of Kafka, without TLS?") from error
        except BaseException:
            connection.close("the broker's versions could not be learned, or it did not let us in")
            raise
        return connection

    def _log_in_before(self, lifetime_ms: int) -> None:
        if lifetime_ms >= SESSION_MS_MIN and not self.closed:
            share = random.uniform(*RELOGIN_SHARES)
            self._login_timer = self._loop.call_later(lifetime_ms * share / 1000, self._begin_login)

    def _begin_login(self) -> None:
        self._behind_login = []
        self._login_task = self._loop.create_task(self._log_in_again())

    async def _log_in_again(self) -> None:
        try:
            lifetime_ms = await log_in(self, self._config)
        except KafkaError as error:
            # Whoever asks next gets a new connection, or learns there why there is none.
            self.close(f"another login failed: {error}")
            return
        except BaseException as error:
            # What waits behind the login would wait for ever: it has no time limit until it is sent.
            self.close(f"another login failed: {error!r}")
            raise
        self._send_what_waited()
        self._log_in_before(lifetime_ms)

    def _send_what_waited(self) -> None:
        waiting, self._behind_login = self._behind_login or [], None
        for send in waiting:
            send()

    async def _negotiate(self) -> None:
        known: asyncio.Future[None] = self._loop.create_future()
        self.wire.negotiate(self._loop.time(), lambda error: _settle(known, error))
        self._set_timer(self.wire.deadline_s)
        await known

    def __str__(self) -> str:
        return self.wire.peer

    @property
    def closed(self) -> bool:
        return self.wire.closed

    # Requests

    async def call(
        self,
        request: Message,
        response_type: type[M],
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
        goes_ahead: bool = False,
    ) -> M:
        """Send a request and wait for its answer. Raises ConnectionLost or UnsupportedByBroker.

        One of a login goes ahead of those that wait for it.
        """
        future: asyncio.Future[Message] = self._loop.create_future()
        send = self._ask_now if goes_ahead else self.ask
        send(request, lambda answer: _settle(future, answer), version_max=version_max, timeout_ms=timeout_ms)
        answer = await future
        invariant(isinstance(answer, response_type), "%s was answered by another kind", type(request).__name__)
        return answer  # type: ignore[return-value]  # narrowed by the invariant above

    def ask(
        self,
        request: Message,
        answered: Answered,
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Send a request now, behind those sent before; `answered` is called with its answer."""
        if self._behind_login is None:
            self._ask_now(request, answered, version_max=version_max, timeout_ms=timeout_ms)
            return
        self.wire.version_of(type(request), version_max)  # what the broker does not know is told at once

        def send() -> None:
            try:
                self._ask_now(request, answered, version_max=version_max, timeout_ms=timeout_ms)
            except KafkaError as error:
                answered(error)

        self._behind_login.append(send)

    def _ask_now(
        self,
        request: Message,
        answered: Answered,
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        now_s = self._loop.time()
        self._set_timer(self.wire.send(request, now_s, answered, version_max=version_max, timeout_ms=timeout_ms))

    def post(
        self, request: Message, *, version_max: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[None] | None:
        """Send a request that the broker does not answer: Produce with acks=0.

        There is no answer to wait for. Whoever sends much waits for the future, if there is one: it is done when the
        broker has taken what was sent, or fails with ConnectionLost.
        """
        if self._behind_login is not None:
            self._behind_login.append(lambda: self._post_late(request, version_max))
            return self._held_back
        self.wire.post(request, version_max)
        if self._held_back is not None:
            wait_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
            self._loop.call_later(wait_ms / 1000, self._give_up_on, self._held_back, wait_ms)
        return self._held_back

    def _post_late(self, request: Message, version_max: int | None) -> None:
        # Whoever sends without answers learns of a connection that is gone by its next request.
        with contextlib.suppress(KafkaError):
            self.wire.post(request, version_max)

    def _write(self, frame: Sequence[Readable]) -> None:
        if self._transport is None:
            raise ConnectionLost(f"{self} is not connected")
        if len(frame) == 1:
            self._transport.write(frame[0])
        else:
            self._transport.writelines(frame)

    def pause_writing(self) -> None:
        self._held_back = self._loop.create_future()

    def resume_writing(self) -> None:
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            held_back.set_result(None)

    def _give_up_on(self, held_back: asyncio.Future[None], timeout_ms: float) -> None:
        if held_back is self._held_back:
            self.close(f"what was sent was not taken within {timeout_ms:.0f} ms")

    # Time

    def _set_timer(self, deadline_s: float | None) -> None:
        """One timer for all requests, set for the earliest deadline; answers leave it alone."""
        if deadline_s is None or self.wire.closed:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wire.expire(self._loop.time())
        if self.wire.closed:
            self.close()
        self._set_timer(self.wire.deadline_s)

    # Bytes

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.wire.buffer_updated(nbytes)
        if self.wire.closed:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.close(str(error) if error else "the broker closed the connection")

    def close(self, reason: str = "closed by this client") -> None:
        """End the socket; whoever waits for an answer gets ConnectionLost."""
        self.wire.close(reason)
        if self._login_timer is not None:
            self._login_timer.cancel()
        self._send_what_waited()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            _settle(held_back, self.wire.lost(reason))


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, KafkaError):
        future.set_exception(outcome)
        # The caller may have stopped waiting; that is no reason for a complaint at exit.
        with contextlib.suppress(asyncio.CancelledError):
            future.exception()
    else:
        future.set_result(outcome)
