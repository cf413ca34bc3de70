"""From a request frame to its handler and back to a response frame.

A key is advertised only when there is a handler for it, because clients switch to whatever they see.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
import time
from collections.abc import Callable
from functools import cache
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.core.promise import Promise
from oncelog.protocol.api import decode_request, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, parse_request_header
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.server import handlers
from oncelog.server.context import HANG_UP, Peer, RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.forwarding import Forwarder

log = logging.getLogger("oncelog.server")

Buffers = list[bytes | bytearray | memoryview]

DECODED_HERE_BYTES_MAX: Final = 65_536
"""A larger request is decoded by a worker, unless most of it is records, which are not decoded at all."""
ENCODED_HERE_ELEMENTS_MAX: Final = 2_000
"""An answer with more is encoded by a worker."""
_WITH_RECORDS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
_LEVELS_WITH_RECORDS: Final = 2
"""Topics and partitions: there is nothing below them that is many."""


class LastAnswer(Buffers):
    """An answer, perhaps without a byte, after which the connection is closed."""


Handler = Callable[["Broker", Any, RequestContext], Any]


Answer = Buffers | Promise[Buffers | None] | None


class Front(Protocol):
    """What a connection hands its frames to: the dispatcher, or what stands before it."""

    def serve(self, frame: memoryview, peer: Peer) -> Answer: ...


def _find_handlers() -> dict[ApiKey, str]:
    """The modules of the handlers: the number in a module's name is the key it serves. None of them is imported."""
    names = [module.name for module in pkgutil.iter_modules(handlers.__path__)]
    return {ApiKey(int(name[1:3])): name for name in sorted(names)}


class UnservedRequest(Exception):
    """A key or version this broker does not serve: like Kafka's, it closes the connection."""


class Dispatcher:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loaded: dict[int, Handler] = {}
        self._modules = _find_handlers()
        self.versions: dict[int, tuple[int, int]] = {key: key.advertised for key in self._modules}
        if broker.settings.boolean("transaction.two.phase.commit.enable"):
            self.versions[ApiKey.INIT_PRODUCER_ID] = (0, ApiKey.INIT_PRODUCER_ID.last)
        self._forwarder: Forwarder | None = None
        if broker.is_in_cluster:
            from oncelog.server.forwarding import FORWARDED, Forwarder

            self._forwarder = Forwarder(broker)
            self.versions |= FORWARDED
        # Some versions are advertised that have no schema: see `ApiKey.advertised`.
        self._served: dict[int, tuple[int, int]] = {
            key: (max(low, key.first) if isinstance(key, ApiKey) else low, high)
            for key, (low, high) in self.versions.items()
        }

    def serve(self, frame: memoryview, peer: Peer) -> Answer:
        """The response frame, a promise of it, or None where the protocol has no answer (acks=0).

        A frame without a byte stands for an answer that cannot be given: the connection is to be closed.
        """
        started_s = time.perf_counter()
        peer.request_bytes = len(frame)
        header, position = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        low, high = self._served.get(key, (0, -1))
        if self._forwarder is not None and self._forwarder.takes(key) and low <= version <= high:
            return self._forwarder.forward(frame, peer)
        if not low <= version <= high:
            if key != ApiKey.API_VERSIONS:
                raise UnservedRequest(f"API key {key} version {version} is not served")
            version = 0
            body: Any = None
        elif len(frame) > DECODED_HERE_BYTES_MAX and key != ApiKey.PRODUCE:
            decoded = self._broker.decoding.run(lambda: decode_request(key, version, frame[position:]))
            return decoded.chain(lambda body: self._serve_decoded(header, version, body, peer, started_s))
        else:
            body = decode_request(key, version, frame[position:])
        return self._answer(header, version, body, peer, started_s)

    def _serve_decoded(
        self, header: RequestHeader, version: int, body: Any, peer: Peer, started_s: float
    ) -> Promise[Buffers | None]:
        try:
            if isinstance(body, Exception):
                raise body
            answer = self._answer(header, version, body, peer, started_s)
        except MalformedRequest as error:
            log.warning("a request of %s cannot be read: %s", peer.client_host, error)
            answer = []
        except Exception:
            log.exception("a request from %s failed; its connection is closed", peer.client_host)
            answer = []
        return answer if isinstance(answer, Promise) else Promise.resolved(answer)

    def _answer(self, header: RequestHeader, version: int, body: Any, peer: Peer, started_s: float) -> Answer:
        key = header.api_key
        context = RequestContext(version, header.client_id or "", peer, self._broker.authorizer, key)
        answer = self._handler(key)(self._broker, body, context)
        if isinstance(answer, GeneratorType):
            answer = self._broker.turns.run(answer, peer, to_the_end=key == ApiKey.PRODUCE)
        if self._broker.quotas.are_set:
            answer = self._charged(context, answer, time.perf_counter() - started_s)
        metrics = self._broker.metrics
        if isinstance(answer, Promise):

            def finish(message: Any) -> Promise[Buffers | None]:
                metrics.request_served(key, time.perf_counter() - started_s)
                try:
                    framed = self._frame(key, version, header.correlation_id, message)
                except Exception:
                    # It would come out where the promise was resolved: in the middle of somebody else's request.
                    log.exception("the answer to a request with API key %d could not be encoded", key)
                    framed = []
                return framed if isinstance(framed, Promise) else Promise.resolved(framed)

            return answer.chain(finish)
        metrics.request_served(key, time.perf_counter() - started_s)
        return self._frame(key, version, header.correlation_id, answer)

    def _charged(self, context: RequestContext, answer: Any, spent_s: float) -> Any:
        """The answer with the time for which its client is to be silent."""
        peer, request_bytes = context.peer, context.peer.request_bytes

        def charge(message: Any) -> Any:
            if context.is_of_broker:
                return message
            self._broker.quotas.charge_request(context.api_key or 0, context, request_bytes, spent_s)
            peer.throttle_ms = context.throttle_ms
            if context.throttle_ms and isinstance(message, Message) and "throttle_time_ms" in message.FIELDS:
                message.throttle_time_ms = context.throttle_ms  # type: ignore[attr-defined]  # most answers have it
            return message

        return answer.map(charge) if isinstance(answer, Promise) else charge(answer)

    def _frame(self, key: int, version: int, correlation_id: int, message: Any) -> Answer:
        if not _is_long(key, message):
            return _frame(key, version, correlation_id, message)

        def encoded(result: Buffers | Exception | None) -> Buffers | None:
            if isinstance(result, Exception):
                log.error("the answer to a request with API key %d could not be encoded", key, exc_info=result)
                return []
            return result

        return self._broker.encoding.run(lambda: _frame(key, version, correlation_id, message)).map(encoded)

    def wrap_handler(self, key: ApiKey, wrap: Callable[[Handler], Handler]) -> None:
        """For tests that need wrong or missing answers."""
        self._loaded[key] = wrap(self._handler(key))

    def _handler(self, key: int) -> Handler:
        handler = self._loaded.get(key)
        if handler is None:
            module = importlib.import_module(f"{handlers.__name__}.{self._modules[ApiKey(key)]}")
            handler = self._loaded[key] = module.handle
        return handler


def _frame(key: int, version: int, correlation_id: int, message: Any) -> Buffers | None:
    if message is None:
        return None
    if message is HANG_UP:
        return []
    buffers = message if isinstance(message, list) else encode_response(key, version, message)
    return frame_response(correlation_id, response_header_version(key, version), buffers)


def _is_long(key: int, message: Any) -> bool:
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
    """Those of structs: texts and numbers in a row are encoded fast."""
    arrays = ((name, field.element) for name, field in cls.FIELDS.items())
    return tuple(name for name, element in arrays if element is not None and element.struct is not None)
