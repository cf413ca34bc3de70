"""What controllers decide is passed on to the active one, with who asked, and its answer goes back as it is.

The controller checks what the client may do, and says so in its answer. Settings of this broker are checked here,
because no controller knows which ones it can change, and what was changed is told to the audit log. The time that this
takes counts for `request_percentage`; the client is silenced for as long as the broker or the controller wants. Where
no controller answers, the connection of the client is closed: nobody knows whether the request was carried out.
Clients ask again.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker
from oncelog.protocol.api import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    messages,
    response_header_version,
)
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import frame_response, frame_whole, parse_request_header, parse_response_header
from oncelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from oncelog.security.forwarded_principal import encode_principal
from oncelog.server.context import HangUp, Peer, RequestContext
from oncelog.server.dispatch import DECODED_HERE_BYTES_MAX, UNCOUNTED_BYTES_MAX, Buffers
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.core.worker import OneAtATime, Worker
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

FORWARDED: Final[dict[int, tuple[int, int]]] = {
    key: key.advertised
    for key in (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    )
}
"""Keys with the versions that are passed on, which Kafka 4.3 serves. Not all of them have a handler here."""
_TIMEOUT_MS: Final = 60_000
_RETRY_MS: Final = 50

_HERE: Final = InlineWorker()
_CONFIGS: Final = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)

_Resource = tuple[int, str]


class Forwarder:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.lost: Counter[int] = Counter()
        """How many of the next answers are not given, by API key: for tests that need missing answers."""

    def takes(self, key: int) -> bool:
        return key in FORWARDED

    def forward(self, frame: memoryview, peer: Peer) -> Promise[Buffers | None]:
        """Raises MalformedRequest, unless a worker decodes the request."""
        peer.later_s = 0.0
        passing = _Passing(self._broker, frame, peer)
        if passing.is_large:
            answer = partial(self._pass_on, passing)
            answered = self._broker.large_requests.serve(passing.key, peer, passing.decode, answer)
        else:
            answered = self._pass_on(passing, passing.decode())
        return answered.map(partial(self._lose, passing.key)) if self.lost[passing.key] else answered

    def _lose(self, key: int, answer: Buffers | None) -> Buffers | None:
        if not self.lost[key]:
            return answer
        self.lost[key] -= 1
        return []

    def _pass_on(self, passing: _Passing, request: Any) -> Promise[Buffers | None]:
        if isinstance(request, Exception):
            log.warning("a request of %s cannot be read: %s", passing.peer.client_host, request)
            return Promise.resolved([])
        checked = self._broker.turns.begin(passing.check(request), passing.peer)
        return checked.chain(lambda data: self._ask(passing, data))

    def _ask(self, passing: _Passing, data: bytes | HangUp | None) -> Promise[Buffers | None]:
        if isinstance(data, HangUp):
            return Promise.resolved([])
        if data is None:
            return passing.answered(None)
        request = EnvelopeRequest(
            request_data=data,
            request_principal=encode_principal(passing.peer.principal),
            client_host_address=_address(passing.peer.client_host),
        )
        promise: Promise[Buffers | None] = Promise()
        self._send(request, promise, self._broker.steady_ms() + _TIMEOUT_MS)
        return promise.chain(passing.answered)

    def _send(self, request: EnvelopeRequest, promise: Promise[Buffers | None], deadline_ms: int) -> None:
        membership, now_ms = self._broker.membership, self._broker.steady_ms()
        if membership is None or now_ms >= deadline_ms or self._broker.stopped:
            promise.resolve([])
            return
        answer = membership.ask_controller("forwarding", request, EnvelopeResponse, deadline_ms - now_ms)
        answer.then(lambda found: self._answered(request, promise, deadline_ms, found))

    def _answered(
        self,
        request: EnvelopeRequest,
        promise: Promise[Buffers | None],
        deadline_ms: int,
        answer: EnvelopeResponse | KafkaError,
    ) -> None:
        code = answer.code if isinstance(answer, KafkaError) else answer.error_code
        if code == ErrorCode.NOT_CONTROLLER:
            self._broker.scheduler.call_later_ms(_RETRY_MS, lambda: self._send(request, promise, deadline_ms))
        elif isinstance(answer, KafkaError) or answer.response_data is None:
            log.warning("the controller did not answer a request that was passed on: %s", answer)
            promise.resolve([])
        else:
            data = answer.response_data
            promise.resolve(frame_whole(data))


class _Passing:
    """A request on its way: what the broker has to say before, and what it does after.

    A large one is decoded and encoded by workers, and checked in slices.
    """

    def __init__(self, broker: Broker, frame: memoryview, peer: Peer) -> None:
        header, self._position = parse_request_header(frame)
        self.peer = peer
        self._broker = broker
        self.key, self._version = header.api_key, header.api_version
        self._header_version = response_header_version(self.key, self._version)
        self._correlation_id = header.correlation_id
        self._data = bytes(frame)
        self._request: Any = None
        self._context = RequestContext(self._version, header.client_id or "", peer, broker.authorizer, self.key)
        self._refused: dict[_Resource, KafkaError] = {}
        self._spent_s = 0.0
        """Besides what the peer has noted."""

    @property
    def is_large(self) -> bool:
        """Also where others decode here: it is decoded twice, and thousands may wait for the controller."""
        return len(self._data) > UNCOUNTED_BYTES_MAX

    def decode(self) -> Any:
        """Raises MalformedRequest."""
        started_s = time.perf_counter()
        try:
            return decode_request(self.key, self._version, memoryview(self._data)[self._position :])
        finally:
            self._spent_s += time.perf_counter() - started_s

    def check(self, request: Any) -> Steps[bytes | None]:
        """What is for the controller; None if there is nothing for it to decide."""
        self._request = request
        if self.key not in _CONFIGS:
            return self._data
        from oncelog.server.config_resources import refusal

        for resource in request.resources:
            error = refusal(self._broker, self._context, resource)
            if error is not None:
                self._refused[resource.resource_type, resource.resource_name] = error
            yield
        if not self._refused:
            return self._data
        left = []
        for resource in request.resources:
            if (resource.resource_type, resource.resource_name) not in self._refused:
                left.append(resource)
            yield
        self._request = type(request)(resources=left, validate_only=request.validate_only)
        body = encode_request(self.key, self._version, self._request)
        return b"".join([self._data[: self._position], *body]) if left else None

    def answered(self, buffers: Buffers | None) -> Promise[Buffers | None]:
        """The answer for the client. `buffers` is that of the controller, None if it was not asked."""
        if buffers == []:
            return Promise.resolved([])
        is_small = not self.is_large and (buffers is None or len(buffers[1]) <= DECODED_HERE_BYTES_MAX)
        decoding, encoding = (_HERE, _HERE) if is_small else (self._broker.decoding, self._broker.encoding)
        return decoding.run(lambda: self._decoded(buffers)).chain(
            lambda answer: self._finished(buffers, answer, encoding)
        )

    def _decoded(self, buffers: Buffers | None) -> Any:
        if buffers is None:
            return messages(self.key).response()
        data = memoryview(buffers[1])
        _, position = parse_response_header(data, self._header_version)
        return decode_response(self.key, self._version, data[position:])

    def _finished(self, buffers: Buffers | None, answer: Any, worker: Worker | OneAtATime) -> Promise[Buffers | None]:
        if isinstance(answer, Exception):
            log.error("the answer to a request with API key %d cannot be read", self.key, exc_info=answer)
            return Promise.resolved(buffers or [])
        is_complete = not self._silence(answer) and not self._refused
        reported: Promise[Any] = Promise.resolved(None)
        if buffers is not None:
            from oncelog.server.change_report import report

            steps = report(self._broker, self._context, self._request, answer)
            reported = self._broker.turns.begin(steps, self.peer, to_the_end=True)
        return reported.chain(lambda _: self._complete(buffers, answer, worker, is_complete=is_complete))

    def _complete(
        self, buffers: Buffers | None, answer: Any, worker: Worker | OneAtATime, *, is_complete: bool
    ) -> Promise[Buffers | None]:
        if is_complete:
            return Promise.resolved(buffers or [])

        def encoded(framed: Buffers | Exception) -> Buffers:
            if isinstance(framed, Exception):
                log.error(
                    "refusals of this broker could not be added to an answer with API key %d",
                    self.key,
                    exc_info=framed,
                )
                return buffers or []
            return framed

        return worker.run(lambda: self._completed(answer)).map(encoded)

    def _silence(self, answer: Any) -> bool:
        """Whether the answer changes: quotas here ask for more than the controller does."""
        quotas, context = self._broker.quotas, self._context
        if quotas.are_set:
            quotas.charge_request(self.key, context, len(self._data), self._spent_s + self.peer.later_s)
        answered_ms = getattr(answer, "throttle_time_ms", 0)
        self.peer.throttle_ms = max(answered_ms, context.throttle_ms)
        is_more = context.throttle_ms > answered_ms and "throttle_time_ms" in type(answer).FIELDS
        if is_more:
            answer.throttle_time_ms = context.throttle_ms
        return is_more

    def _completed(self, answer: Any) -> Buffers:
        """The controller's answer, completed by what this broker has refused itself."""
        if not self._refused:
            return self._framed(answer)
        result = type(answer).FIELDS["responses"].element.struct
        for (kind, name), error in self._refused.items():
            answer.responses.append(
                result(error_code=error.code, error_message=error.message, resource_type=kind, resource_name=name)
            )
        return self._framed(answer)

    def _framed(self, answer: Any) -> Buffers:
        body = encode_response(self.key, self._version, answer)
        return frame_response(self._correlation_id, self._header_version, body)


def _address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return ipaddress.IPv4Address(0).packed
