"""From a request frame to its handler and back to a response frame.

A key is advertised only when there is a handler for it, because clients switch to whatever they see.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from oncelog.core.promise import Promise
from oncelog.protocol.api import decode_request, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import frame_response, parse_request_header
from oncelog.server import handlers
from oncelog.server.context import HANG_UP, Peer, RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

Buffers = list[bytes | bytearray | memoryview]


class LastAnswer(Buffers):
    """An answer, perhaps without a byte, after which the connection is closed."""


Handler = Callable[["Broker", Any, RequestContext], Any]


class Front(Protocol):
    """What a connection hands its frames to: the dispatcher, or what stands before it."""

    def serve(self, frame: memoryview, peer: Peer) -> Buffers | Promise[Buffers | None] | None: ...


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
        self.versions = {key: key.advertised for key in self._modules}
        if broker.settings.boolean("transaction.two.phase.commit.enable"):
            self.versions[ApiKey.INIT_PRODUCER_ID] = (0, ApiKey.INIT_PRODUCER_ID.last)
        # Some versions are advertised that have no schema: see `ApiKey.advertised`.
        self._served: dict[int, tuple[int, int]] = {
            key: (max(low, key.first), high) for key, (low, high) in self.versions.items()
        }

    def serve(self, frame: memoryview, peer: Peer) -> Buffers | Promise[Buffers | None] | None:
        """The response frame, a promise of it, or None where the protocol has no answer (acks=0).

        A frame without a byte stands for an answer that cannot be given: the connection is to be closed.
        """
        started_s = time.perf_counter()
        header, position = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        low, high = self._served.get(key, (0, -1))
        if not low <= version <= high:
            if key != ApiKey.API_VERSIONS:
                raise UnservedRequest(f"API key {key} version {version} is not served")
            version = 0
            body: Any = None
        else:
            body = decode_request(key, version, frame[position:])
        context = RequestContext(version, header.client_id or "", peer, self._broker.authorizer)
        answer = self._handler(key)(self._broker, body, context)
        metrics = self._broker.metrics
        if isinstance(answer, Promise):

            def finish(message: Any) -> Buffers | None:
                metrics.request_served(key, time.perf_counter() - started_s)
                try:
                    return _frame(key, version, header.correlation_id, message)
                except Exception:
                    # It would come out where the promise was resolved: in the middle of somebody else's request.
                    log.exception("the answer to a request with API key %d could not be encoded", key)
                    return []

            return answer.map(finish)
        metrics.request_served(key, time.perf_counter() - started_s)
        return _frame(key, version, header.correlation_id, answer)

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
