"""One connection to one broker: requests go out in order, pipelined, and their answers come back in that order.

A request that is not answered in time closes the connection, since every later answer waits behind the missing one.
Whoever waits on a closed connection gets ConnectionLost: the request may or may not have been carried out, and only the
caller knows how to ask again without doing it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from typing import Any, Final, TypeVar

import oncelog
from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost, UnsupportedByBroker, error_of
from oncelog.core.errors import ErrorCode
from oncelog.core.invariant import invariant
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import FrameReader, FrameTooLarge, encode_request_frame, parse_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message

M = TypeVar("M", bound=Message)

RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
TRANSACTION_VERSION: Final = "transaction.version"
VERSION_CAPS: Final[dict[int, int]] = {
    # The next versions name topics by id only.
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    # Later versions are between brokers.
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    # Version 6 asks for two-phase commit and is used only where that is wanted.
    ApiKey.INIT_PRODUCER_ID: 5,
}


class _Waiting:
    """A request that was sent and not answered yet."""

    __slots__ = ("api_key", "correlation_id", "future", "timer", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int, future: asyncio.Future[Message]) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.timer: asyncio.TimerHandle | None = None


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`, which also learns the broker's versions and features."""

    def __init__(self, config: ClientConfig, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self.closed = False
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(RESPONSE_BYTES_MAX)
        self._transport: asyncio.WriteTransport | None = None
        self._correlation = itertools.count(1)
        self._waiting: deque[_Waiting] = deque()
        self._held_back: asyncio.Future[None] | None = None
        """While the broker does not take what is sent to it: done when it does again."""

    @classmethod
    async def open(cls, config: ClientConfig, host: str, port: int) -> Connection:
        """Connect and negotiate. Raises ConnectionLost."""
        loop = asyncio.get_running_loop()
        timeout_s = config.socket_connection_setup_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(config, host, port), host, port)
        except TimeoutError:
            raise ConnectionLost(f"{host}:{port} did not accept a connection within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {host}:{port}: {error}") from error
        try:
            await connection._negotiate()
        except BaseException:
            connection.close("the broker's versions could not be learned")
            raise
        return connection

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    # What the broker speaks

    async def _negotiate(self) -> None:
        version = ApiVersionsRequest.VERSIONS[1]
        response = await self._ask_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [key.max_version for key in response.api_keys if key.api_key == ApiKey.API_VERSIONS]
            response = await self._ask_versions(min(offered[0], version) if offered else 0)
        if response.error_code:
            raise error_of(response.error_code, f"{self} refuses to tell its versions")
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.features = {key.name: key.max_version_level for key in response.finalized_features}

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="oncelog", client_software_version=oncelog.__version__)
        answer = await self._start(request, version, self._config.request_timeout_ms)
        invariant(isinstance(answer, ApiVersionsResponse), "an answer of the wrong kind")
        return answer  # type: ignore[return-value]  # narrowed by the invariant above

    @property
    def transaction_version(self) -> int:
        """0 or 1 for the older protocol, 2 when every EndTxn bumps the epoch (KIP-890)."""
        return min(self.features.get(TRANSACTION_VERSION, 0), self._config.transaction_version_max)

    def supports(self, request_type: type[Message], version: int = 0) -> bool:
        return request_type.API_KEY in self.versions and self.versions[request_type.API_KEY][1] >= version

    def version_of(self, request_type: type[Message], version_max: int | None = None) -> int:
        """The newest version both sides know, up to `version_max`. Raises UnsupportedByBroker."""
        key = request_type.API_KEY
        invariant(key is not None, "%s is not a request", request_type.__name__)
        first, last = request_type.VERSIONS
        cap = VERSION_CAPS.get(key or 0, last) if version_max is None else version_max
        if key not in self.versions:
            raise UnsupportedByBroker(f"{self} does not serve {request_type.__name__.removesuffix('Request')}")
        broker_first, broker_last = self.versions[key]
        version = min(last, broker_last, cap)
        if version < max(first, broker_first):
            raise UnsupportedByBroker(
                f"{self} speaks {request_type.__name__} {broker_first}-{broker_last}, "
                f"this client speaks {first}-{min(last, cap)}"
            )
        return version

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
        answer = await self.start(request, version_max=version_max, timeout_ms=timeout_ms)
        invariant(isinstance(answer, response_type), "%s was answered by another kind", type(request).__name__)
        return answer  # type: ignore[return-value]  # narrowed by the invariant above

    def start(
        self, request: Message, *, version_max: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[Message]:
        """Send a request now, behind those sent before; the future is its answer."""
        version = self.version_of(type(request), version_max)
        wait_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        return self._start(request, version, wait_ms)

    def post(
        self, request: Message, *, version_max: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[None] | None:
        """Send a request that the broker does not answer: Produce with acks=0.

        No answer says when to go on. So whoever sends much waits for the future, if there is one: it is done when the
        broker takes what was sent, or fails with ConnectionLost.
        """
        self._write(request, self.version_of(type(request), version_max), next(self._correlation))
        if self._held_back is not None:
            wait_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
            self._loop.call_later(wait_ms / 1000, self._give_up_on, self._held_back, wait_ms)
        return self._held_back

    def _start(self, request: Message, version: int, timeout_ms: float) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = self._loop.create_future()
        waiting = _Waiting(request.API_KEY or 0, version, next(self._correlation), future)
        self._write(request, version, waiting.correlation_id)
        self._waiting.append(waiting)
        waiting.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, waiting, timeout_ms)
        return future

    def _write(self, request: Message, version: int, correlation_id: int) -> None:
        if self.closed or self._transport is None:
            raise ConnectionLost(f"the connection to {self} is closed")
        key = request.API_KEY or 0
        body = encode_request(key, version, request)
        frame = encode_request_frame(key, version, correlation_id, self._config.client_id, body)
        if len(frame) == 1:
            self._transport.write(frame[0])
        else:
            self._transport.writelines(frame)

    def _time_out(self, waiting: _Waiting, timeout_ms: float) -> None:
        self.close(f"{ApiKey(waiting.api_key).name} was not answered within {timeout_ms:.0f} ms")

    def pause_writing(self) -> None:
        self._held_back = self._loop.create_future()

    def resume_writing(self) -> None:
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            held_back.set_result(None)

    def _give_up_on(self, held_back: asyncio.Future[None], timeout_ms: float) -> None:
        if held_back is self._held_back:
            self.close(f"what was sent was not taken within {timeout_ms:.0f} ms")

    # Answers

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.buffer_updated(nbytes):
                self._answer(frame)
        except (FrameTooLarge, MalformedRequest) as error:
            self.close(f"unreadable bytes: {error}")

    def _answer(self, frame: memoryview) -> None:
        if not self._waiting:
            raise MalformedRequest("an answer to nothing")
        waiting = self._waiting[0]
        header_version = response_header_version(waiting.api_key, waiting.version)
        correlation_id, position = parse_response_header(frame, header_version)
        if correlation_id != waiting.correlation_id:
            raise MalformedRequest(f"answer {correlation_id} where {waiting.correlation_id} is due")
        response = decode_response(waiting.api_key, self._answered_version(waiting, frame, position), frame, position)
        self._waiting.popleft()
        if waiting.timer is not None:
            waiting.timer.cancel()
        if not waiting.future.done():
            waiting.future.set_result(response)

    def _answered_version(self, waiting: _Waiting, frame: memoryview, position: int) -> int:
        """A broker that does not know the version of an ApiVersions request answers in version 0."""
        if waiting.api_key == ApiKey.API_VERSIONS and len(frame) >= position + 2:
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            return 0 if code == ErrorCode.UNSUPPORTED_VERSION else waiting.version
        return waiting.version

    # The end

    def connection_lost(self, error: Exception | None) -> None:
        self.close(str(error) if error else "the broker closed the connection")

    def close(self, reason: str = "closed by this client") -> None:
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.timer is not None:
                request.timer.cancel()
            self._fail(request.future, reason)
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self._fail(held_back, reason)

    def _fail(self, future: asyncio.Future[Any], reason: str) -> None:
        if not future.done():
            future.set_exception(ConnectionLost(f"{self}: {reason}"))
            # The caller may have stopped waiting; that is no reason for a complaint at exit.
            with contextlib.suppress(asyncio.CancelledError):
                future.exception()
