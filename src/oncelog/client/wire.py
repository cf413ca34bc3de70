"""The state of one connection, without its socket: bytes and time come in, bytes and a deadline go out.

Requests are pipelined, and their answers come back in the same order. A request that is not answered in time closes the
connection, since every later answer waits behind the missing one. Whoever waits on a closed connection gets
ConnectionLost: the request may or may not have been carried out, and only the caller knows how to ask again without
doing it twice.

Whoever owns the socket passes received bytes to `get_buffer` and `buffer_updated`, calls `expire` when `deadline_s` has
come, and ends the socket when `closed` is set.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import oncelog
from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost, KafkaError, UnsupportedByBroker, error_of
from oncelog.core.errors import ErrorCode
from oncelog.core.features import TRANSACTION_VERSION
from oncelog.core.invariant import invariant
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import FrameReader, FrameTooLarge, encode_request_frame, parse_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from oncelog.protocol.primitives import MalformedRequest, Readable
from oncelog.protocol.schema import Message

Answered = Callable[[Message | KafkaError], None]
"""Called with the answer, or with why there is none, when bytes arrive, at a deadline, or at the close."""
Versions = dict[int, tuple[int, int]]
"""The first and the last version of each API that a broker serves."""
RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
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


def versions_request() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="oncelog", client_software_version=oncelog.__version__)


def features_in(response: ApiVersionsResponse) -> dict[str, int]:
    """Levels of the finalised features; none if the broker does not know them."""
    if response.finalized_features_epoch < 0:
        return {}
    return {key.name: key.max_version_level for key in response.finalized_features}


class _Waiting(NamedTuple):
    """A request that was sent and not answered yet."""

    api_key: int
    version: int
    correlation_id: int
    deadline_s: float
    timeout_ms: float
    answered: Answered


class Wire:
    def __init__(self, config: ClientConfig, peer: str, write: Callable[[Sequence[Readable]], None]) -> None:
        self.peer = peer
        self.versions: Versions = {}
        self.features: dict[str, int] = {}
        self.closed = False
        self._config = config
        self._write = write
        self._reader = FrameReader(RESPONSE_BYTES_MAX)
        self._last_correlation_id = 0
        self._waiting: deque[_Waiting] = deque()

    # What the broker speaks

    def negotiate(self, now_s: float, done: Callable[[KafkaError | None], None]) -> None:
        """Learn the broker's versions and features, by one question or two."""
        newest = ApiVersionsRequest.VERSIONS[1]

        def first(answer: Message | KafkaError) -> None:
            if isinstance(answer, ApiVersionsResponse) and answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                offered = [key.max_version for key in answer.api_keys if key.api_key == ApiKey.API_VERSIONS]
                self._ask_versions(min(offered[0], newest) if offered else 0, now_s, second)
            else:
                second(answer)

        def second(answer: Message | KafkaError) -> None:
            done(answer if isinstance(answer, KafkaError) else self._learn(answer))

        self._ask_versions(newest, now_s, first)

    def _ask_versions(self, version: int, now_s: float, answered: Answered) -> None:
        request = versions_request()
        self._send(request, version, now_s, self._config.request_timeout_ms, answered)

    def _learn(self, response: Message) -> KafkaError | None:
        if not isinstance(response, ApiVersionsResponse):
            return ConnectionLost(f"{self.peer} answered ApiVersions with another kind")
        if response.error_code:
            return error_of(response.error_code, f"{self.peer} refuses to tell its versions")
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        self.features = features_in(response)
        return None

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
            raise UnsupportedByBroker(f"{self.peer} does not serve {request_type.__name__.removesuffix('Request')}")
        broker_first, broker_last = self.versions[key]
        version = min(last, broker_last, cap)
        if version < max(first, broker_first):
            raise UnsupportedByBroker(
                f"{self.peer} speaks {request_type.__name__} {broker_first}-{broker_last}, "
                f"this client speaks {first}-{min(last, cap)}"
            )
        return version

    # Requests

    def send(
        self,
        request: Message,
        now_s: float,
        answered: Answered,
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
    ) -> float:
        """Write a request behind those sent before; returns its deadline. Raises ConnectionLost or UnsupportedByBroker.

        One that the broker does not answer is for `post`.
        """
        wait_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        return self._send(request, self.version_of(type(request), version_max), now_s, wait_ms, answered)

    def post(self, request: Message, version_max: int | None = None) -> None:
        """Write a request that the broker does not answer: Produce with acks=0."""
        self._write_frame(request, self.version_of(type(request), version_max))

    def _send(self, request: Message, version: int, now_s: float, timeout_ms: float, answered: Answered) -> float:
        number = self._write_frame(request, version)
        waiting = _Waiting(request.API_KEY or 0, version, number, now_s + timeout_ms / 1000, timeout_ms, answered)
        self._waiting.append(waiting)
        return waiting.deadline_s

    def _write_frame(self, request: Message, version: int) -> int:
        if self.closed:
            raise ConnectionLost(f"the connection to {self.peer} is closed")
        key = request.API_KEY or 0
        self._last_correlation_id += 1
        try:
            body = encode_request(key, version, request)
        except (struct.error, UnicodeEncodeError) as error:
            # Before anything is written, so that the connection stays as it is.
            what = "a text is not UTF-8" if isinstance(error, UnicodeEncodeError) else "a number is out of range"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{type(request).__name__}: {what}") from error
        self._write(encode_request_frame(key, version, self._last_correlation_id, self._config.client_id, body))
        return self._last_correlation_id

    # Time

    @property
    def deadline_s(self) -> float | None:
        """When a request is overdue, if its answer does not come before; None while nothing is waited for."""
        return min((waiting.deadline_s for waiting in self._waiting), default=None)

    def expire(self, now_s: float) -> None:
        """Close the connection if an answer is overdue."""
        for waiting in self._waiting:
            if waiting.deadline_s <= now_s:
                self.close(f"{ApiKey(waiting.api_key).name} was not answered within {waiting.timeout_ms:.0f} ms")
                return

    # Answers

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, count: int) -> None:
        try:
            for frame in self._reader.buffer_updated(count):
                self._take(frame)
        except (FrameTooLarge, MalformedRequest) as error:
            self.close(f"unreadable bytes: {error}")

    def _take(self, frame: memoryview) -> None:
        if not self._waiting:
            raise MalformedRequest("an answer without a request")
        waiting = self._waiting[0]
        header_version = response_header_version(waiting.api_key, waiting.version)
        correlation_id, position = parse_response_header(frame, header_version)
        if correlation_id != waiting.correlation_id:
            raise MalformedRequest(f"answer {correlation_id} where {waiting.correlation_id} is due")
        response = decode_response(waiting.api_key, _answered_version(waiting, frame, position), frame, position)
        self._waiting.popleft()
        waiting.answered(response)

    # The end

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            request.answered(self.lost(reason))

    def lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"{self.peer}: {reason}")


def _answered_version(waiting: _Waiting, frame: memoryview, position: int) -> int:
    """A broker that does not know the version of an ApiVersions request answers in version 0."""
    if waiting.api_key == ApiKey.API_VERSIONS and len(frame) >= position + 2:
        code = int.from_bytes(frame[position : position + 2], "big", signed=True)
        return 0 if code == ErrorCode.UNSUPPORTED_VERSION else waiting.version
    return waiting.version
