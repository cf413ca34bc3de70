"""From a request frame to its handler and back to a response frame.

A key is advertised only when there is a handler for it, because clients switch to whatever they see.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.core.promise import Promise
from oncelog.protocol.api import Decode, request_decoder, response_encoder, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header
from oncelog.protocol.primitives import MalformedRequest, Readable, TooManyElements
from oncelog.protocol.schema import Message
from oncelog.server import handlers
from oncelog.server.context import HANG_UP, Peer, RequestContext

if TYPE_CHECKING:
    from oncelog.protocol.messages.api_versions import ApiVersion
    from oncelog.server.broker import Broker
    from oncelog.server.turns import Steps

log = logging.getLogger("oncelog.server")

Buffers = list[bytes | bytearray | memoryview]

DECODED_HERE_BYTES_MAX: Final = 65_536
"""A larger request is decoded by a worker, unless it is large for its records, which are not decoded at all."""
DECODED_HERE_ELEMENTS_MAX: Final = 2_000
"""One that has more is decoded by a worker after all, and counts as the objects that it becomes."""
UNCOUNTED_BYTES_MAX: Final = 4_096
"""A larger request that is not answered at once counts as the objects that it has become. While many are begun, it is
decoded in a later turn."""
ENCODED_HERE_ELEMENTS_MAX: Final = 2_000
"""An answer with more is encoded by a worker."""
BRIEF_S: Final = 0.001
"""What was answered within this time is not looked at: so many elements cannot be made in it."""
_MADE_WHEN_ENCODED: Final = frozenset({ApiKey.METADATA})
"""What their answers have is made by their encoders, so that the time until then tells nothing."""
_WITH_RECORDS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
_LEVELS_WITH_RECORDS: Final = 2
"""Topics and partitions: what is below them is bounded (`aborted_transactions`)."""

_USED_BY_MOST_CLIENTS: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)
USED_SOON: Final = (
    "oncelog.controller.producer_id_blocks",
    "oncelog.controller.topic_changes",
    "oncelog.coordinator.group.machine",
    "oncelog.coordinator.txn.machine",
    "oncelog.server.change_report",
)
"""What these requests lead to, that a start has no use for."""


class LastAnswer(Buffers):
    """An answer, perhaps without a byte, after which the connection is closed."""


Handler = Callable[["Broker", Any, RequestContext], Any]


Answer = Buffers | Promise[Buffers | None] | None


class Front(Protocol):
    """What a connection hands its frames to: the dispatcher, or what stands before it."""

    def serve(self, frame: memoryview, peer: Peer) -> Answer: ...


@cache
def _find_handlers() -> dict[ApiKey, str]:
    """The modules of the handlers: the number in a module's name is the key it serves. None of them is imported."""
    names = [module.name for module in pkgutil.iter_modules(handlers.__path__)]
    return {ApiKey(int(name[1:3])): name for name in sorted(names)}


class UnservedRequest(Exception):
    """A key or version this broker does not serve: like Kafka's, it closes the connection."""


class Dispatcher:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {}
        self._routes: dict[tuple[int, ...], _Route] = {}
        self._modules = _find_handlers()
        self.versions: dict[int, tuple[int, int]] = {key: key.advertised for key in self._modules}
        if broker.settings.boolean("transaction.two.phase.commit.enable"):
            self.versions[ApiKey.INIT_PRODUCER_ID] = (0, ApiKey.INIT_PRODUCER_ID.last)
        from oncelog.server.forwarding import FORWARDED, Forwarder  # which needs the names of this module

        self.forwarder = Forwarder(broker)
        self.versions |= FORWARDED
        # Some versions are advertised that have no schema: see `ApiKey.advertised`.
        self._served: dict[int, tuple[int, int]] = {
            key: (max(low, key.first) if isinstance(key, ApiKey) else low, high)
            for key, (low, high) in self.versions.items()
        }

    @cached_property
    def advertised(self) -> list[ApiVersion]:
        from oncelog.protocol.messages.api_versions import ApiVersion  # nobody asks before the start is over

        return [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()
        ]

    def serve(self, frame: memoryview, peer: Peer) -> Answer:
        """The response frame, a promise of it, or None where the protocol has no answer (acks=0).

        A frame without a byte stands for an answer that cannot be given: the connection is to be closed.
        """
        started_s = time.perf_counter()
        peer.request_bytes = size_bytes = len(frame)
        header, position = parse_request_header(frame)
        route = self._routes.get(header[:2])
        if route is None:
            if self.forwarder.takes(header.api_key) and self._serves(header):
                return self.forwarder.forward(frame, peer)
            route = self._new_route(header)
        if size_bytes <= DECODED_HERE_BYTES_MAX or route.key == ApiKey.PRODUCE:
            is_small = size_bytes <= UNCOUNTED_BYTES_MAX
            if not is_small and route.key != ApiKey.PRODUCE and self._broker.turns.is_crowded:
                peer.add_work_bytes(size_bytes)
                later = self._decode_later(route, header, frame, position, peer, started_s)
                return self._broker.turns.begin(later, peer).map(lambda answer: [] if answer is HANG_UP else answer)
            try:
                body = route.decode(frame, position, DECODED_HERE_ELEMENTS_MAX)[0]
            except TooManyElements:
                pass
            else:
                answer = self._answer(route, header, body, peer, started_s)
                if not is_small and isinstance(answer, Promise) and not answer.done:
                    self._broker.large_requests.count(body, peer)
                return answer
        return self._decode_elsewhere(route, header, frame, position, peer, started_s)

    def _decode_elsewhere(
        self, route: _Route, header: RequestHeader, frame: memoryview, position: int, peer: Peer, started_s: float
    ) -> Promise[Buffers | None]:
        return self._broker.large_requests.serve(
            route.key,
            peer,
            lambda: route.decode(frame, position)[0],
            lambda body: self._serve_decoded(route, header, body, peer, started_s),
        )

    def _decode_later(
        self, route: _Route, header: RequestHeader, frame: memoryview, position: int, peer: Peer, started_s: float
    ) -> Steps[Promise[Buffers | None]]:
        """In a turn in which others have come too, who may be thousands."""
        yield
        body: Any
        try:
            body = route.decode(frame, position, DECODED_HERE_ELEMENTS_MAX)[0]
        except TooManyElements:
            return self._decode_elsewhere(route, header, frame, position, peer, started_s)
        except MalformedRequest as error:
            body = error
        answer = self._serve_decoded(route, header, body, peer, started_s)
        if not answer.done:
            self._broker.large_requests.count(body, peer)
        return answer

    def _serves(self, header: RequestHeader) -> bool:
        low, high = self._served.get(header.api_key, (0, -1))
        return low <= header.api_version <= high

    def _new_route(self, header: RequestHeader) -> _Route:
        key, version = header.api_key, header.api_version
        if self._serves(header):
            route = _Route(key, version, request_decoder(key, version), self._handler(key))
            self._routes[key, version] = route
            return route
        if key != ApiKey.API_VERSIONS:
            raise UnservedRequest(f"API key {key} version {version} is not served")
        return _Route(key, 0, _without_body, self._handler(key))

    def _serve_decoded(
        self, route: _Route, header: RequestHeader, body: Any, peer: Peer, started_s: float
    ) -> Promise[Buffers | None]:
        try:
            if isinstance(body, Exception):
                raise body
            answer = self._answer(route, header, body, peer, started_s)
        except MalformedRequest as error:
            log.warning("a request of %s cannot be read: %s", peer.client_host, error)
            answer = []
        except Exception:
            log.exception("a request from %s failed; its connection is closed", peer.client_host)
            answer = []
        return answer if isinstance(answer, Promise) else Promise.resolved(answer)

    def _answer(self, route: _Route, header: RequestHeader, body: Any, peer: Peer, started_s: float) -> Answer:
        broker = self._broker
        context = RequestContext(route.version, header.client_id or "", peer, broker.authorizer, route.key)
        answer = route.handle(broker, body, context)
        if isinstance(answer, GeneratorType):
            answer = broker.turns.run(answer, peer, to_the_end=route.key == ApiKey.PRODUCE)
        if broker.quotas.are_set:
            answer = self._charged(context, answer, time.perf_counter() - started_s)
        if isinstance(answer, Promise):
            if not answer.done:
                return self._framed_later(route, header.correlation_id, answer, started_s)
            answer = answer.value
        return self._framed(route, header.correlation_id, answer, started_s)

    def _framed_later(
        self, route: _Route, correlation_id: int, answer: Promise[Any], started_s: float
    ) -> Promise[Buffers | None]:
        def finish(message: Any) -> Promise[Buffers | None]:
            try:
                framed = self._framed(route, correlation_id, message, started_s)
            except Exception:
                # It would come out where the promise was resolved: in the middle of somebody else's request.
                log.exception("the answer to a request with API key %d could not be encoded", route.key)
                framed = []
            return framed if isinstance(framed, Promise) else Promise.resolved(framed)

        return answer.chain(finish)

    def _charged(self, context: RequestContext, answer: Any, spent_s: float) -> Any:
        """The answer with the time for which its client is to be silent."""
        peer, request_bytes = context.peer, context.peer.request_bytes
        peer.later_s = 0.0

        def charge(message: Any) -> Any:
            if context.is_of_broker:
                return message
            self._broker.quotas.charge_request(context.api_key or 0, context, request_bytes, spent_s + peer.later_s)
            peer.throttle_ms = context.throttle_ms
            if context.throttle_ms and isinstance(message, Message) and "throttle_time_ms" in message.FIELDS:
                message.throttle_time_ms = context.throttle_ms  # type: ignore[attr-defined]  # most answers have it
            return message

        return answer.map(charge) if isinstance(answer, Promise) else charge(answer)

    def _framed(self, route: _Route, correlation_id: int, message: Any, started_s: float) -> Answer:
        spent_s = time.perf_counter() - started_s
        self._broker.metrics.request_served(route.key, spent_s)
        is_brief = spent_s < BRIEF_S and route.key not in _MADE_WHEN_ENCODED
        if is_brief or not is_long(route.key, message):
            return route.frame(correlation_id, message)

        def encoded(result: Buffers | Exception | None) -> Buffers | None:
            if isinstance(result, Exception):
                log.error("the answer to a request with API key %d could not be encoded", route.key, exc_info=result)
                return []
            return result

        return self._broker.encoding.run(lambda: route.frame(correlation_id, message)).map(encoded)

    def load_handlers(self) -> Iterator[None]:
        """Imports those that most clients use, one with each step. A first request would keep all others waiting for
        that, and a start would take longer."""
        for key in _USED_BY_MOST_CLIENTS:
            self._handler(key)
            yield
        for name in USED_SOON:
            importlib.import_module(name)
            yield

    def wrap_handler(self, key: ApiKey, wrap: Callable[[Handler], Handler]) -> None:
        """For tests that need wrong or missing answers. What is passed on has no handler: see `Forwarder.lost`."""
        self._handlers[key] = wrap(self._handler(key))
        self._routes.clear()

    def _handler(self, key: int) -> Handler:
        handler = self._handlers.get(key)
        if handler is None:
            module = importlib.import_module(f"{handlers.__name__}.{self._modules[ApiKey(key)]}")
            handler = self._handlers[key] = module.handle
        return handler


class _Route:
    """What serves an API key in one of its versions."""

    __slots__ = ("_encode", "_header_version", "decode", "handle", "key", "version")

    def __init__(self, key: int, version: int, decode: Decode, handle: Handler) -> None:
        self.key = key
        self.version = version
        self.decode = decode
        self.handle = handle
        self._encode = response_encoder(key, version)
        self._header_version = response_header_version(key, version)

    def frame(self, correlation_id: int, message: Any) -> Buffers | None:
        if message is None:
            return None
        if message is HANG_UP:
            return []
        buffers = message if isinstance(message, list) else self._encode(message)
        return frame_response(correlation_id, self._header_version, buffers)


def _without_body(_: Readable, position: int, _room: int = 0) -> tuple[None, int]:
    return None, position


def is_long(key: int, message: Any) -> bool:
    """Whether a worker is to encode it."""
    levels = _LEVELS_WITH_RECORDS if key in _WITH_RECORDS else sys.maxsize
    return isinstance(message, Message) and _room_after(message, ENCODED_HERE_ELEMENTS_MAX, levels) < 0


def _room_after(message: Message, room: int, levels: int) -> int:
    """What is left of the room for elements, over all levels; below 0 as soon as there is none."""
    for name in _arrays_of(type(message)):
        elements: list[Message] = getattr(message, name)
        if not elements:
            continue
        room -= len(elements)
        if levels > 1 and _arrays_of(type(elements[0])):
            for element in elements:
                if room < 0:
                    return room
                room = _room_after(element, room, levels - 1)
    return room


@cache
def _arrays_of(cls: type[Message]) -> tuple[str, ...]:
    """The fields that are arrays of structs. Arrays of texts and numbers are encoded fast and do not count."""
    arrays = ((name, field.element) for name, field in cls.FIELDS.items())
    return tuple(name for name, element in arrays if element is not None and element.struct is not None)
