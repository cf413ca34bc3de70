"""One connection to one broker on an asyncio transport: `wire` says what goes over it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError
from oncelog.client.login import log_in
from oncelog.client.wire import Answered, Wire
from oncelog.core.invariant import invariant
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message

M = TypeVar("M", bound=Message)


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`, which also learns the broker's versions and features."""

    def __init__(self, config: ClientConfig, host: str, port: int) -> None:
        self.wire = Wire(config, f"{host}:{port}", self._write)
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: asyncio.Future[None] | None = None
        """While the broker does not take what is sent to it: done when it does again."""

    @classmethod
    async def open(cls, config: ClientConfig, host: str, port: int, tls: ssl.SSLContext | None = None) -> Connection:
        """Connect, negotiate and log in. Raises ConnectionLost, or KafkaError if the broker does not let us in."""
        loop = asyncio.get_running_loop()
        timeout_s = config.socket_connection_setup_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(config, host, port), host, port, ssl=tls)
        except TimeoutError:
            raise ConnectionLost(f"{host}:{port} did not accept a connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            text = f"{host}:{port} is not trusted: {error.verify_message}; see ssl.truststore.location"
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from error
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {host}:{port}: {error}") from error
        try:
            await connection._negotiate()
            if config.has_sasl:
                await log_in(connection, config)
        except BaseException:
            connection.close("the broker's versions could not be learned, or it did not let us in")
            raise
        return connection

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
    ) -> M:
        """Send a request and wait for its answer. Raises ConnectionLost or UnsupportedByBroker."""
        future: asyncio.Future[Message] = self._loop.create_future()
        self.ask(request, lambda answer: _settle(future, answer), version_max=version_max, timeout_ms=timeout_ms)
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
        now_s = self._loop.time()
        self._set_timer(self.wire.send(request, now_s, answered, version_max=version_max, timeout_ms=timeout_ms))

    def post(
        self, request: Message, *, version_max: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[None] | None:
        """Send a request that the broker does not answer: Produce with acks=0.

        There is no answer to wait for. Whoever sends much waits for the future, if there is one: it is done when the
        broker has taken what was sent, or fails with ConnectionLost.
        """
        self.wire.post(request, version_max)
        if self._held_back is not None:
            wait_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
            self._loop.call_later(wait_ms / 1000, self._give_up_on, self._held_back, wait_ms)
        return self._held_back

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
