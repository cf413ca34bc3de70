"""The port for Prometheus: a small HTTP server on the broker's loop.

A client sends one request, gets one answer, and the connection is closed. All of it is bounded: connections, with TLS
from the handshake on, bytes of a request, the time from the first byte to the last, and how often the metrics are read,
whoever asks for them. Text is made by a worker.

This module is imported before the port opens, and with it all that a scrape needs: afterwards there may be no
descriptor left to import with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from oncelog.core.promise import Promise
from oncelog.core.worker import Worker
from oncelog.server.connection_limits import Admission
from oncelog.server.context import HangUp
from oncelog.server.metrics_page import Reading

if TYPE_CHECKING:
    from oncelog.server.tls_listener import Certificates, TlsListener

log = logging.getLogger("oncelog.server")

CONNECTIONS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8_192
LIFETIME_S: Final = 10.0
"""The longest life of a connection, as long as the default scrape time-out of Prometheus."""
PAGE_AGE_S: Final = 1.0
"""Within this time the same page is served again."""
_END_OF_REQUEST: Final = b"\r\n\r\n"
_PATHS: Final = ("/", "/metrics")


class MetricsPort:
    def __init__(self, read: Callable[[], Promise[Reading | HangUp]], worker: Worker) -> None:
        self._loop = asyncio.get_running_loop()
        self._read = read
        self._worker = worker
        self._server: asyncio.Server | None = None
        self._page: Promise[bytes | Exception] | None = None
        self._page_expires_s = 0.0
        self._tls_listener: TlsListener[MetricsClient] | None = None
        self.clients: set[MetricsClient] = set()

    async def open(self, host: str, port: int, certificates: Certificates | None = None) -> int:
        """The port that is listened on. Raises OSError."""
        is_plain = certificates is None
        server = await self._loop.create_server(lambda: MetricsClient(self), host, port, start_serving=is_plain)
        bound: int = server.sockets[0].getsockname()[1]
        if certificates is None:
            self._server = server
        else:
            from oncelog.server.tls_listener import TlsListener, sockets_of

            self._tls_listener = TlsListener(
                sockets_of(server), certificates, lambda: MetricsClient(self), self.clients.discard
            )
            self._tls_listener.start()
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._tls_listener is not None:
            self._tls_listener.close()
        for client in list(self.clients):
            client.abort()

    def page(self) -> Promise[bytes | Exception]:
        """The current page, or the one that is being made. It is shared by all who ask meanwhile."""
        if self._page is None or (self._page.done and self._loop.time() >= self._page_expires_s):
            self._page = self._read().chain(self._made)
            self._page_expires_s = self._loop.time() + PAGE_AGE_S
        return self._page

    def _made(self, reading: Reading | HangUp) -> Promise[bytes | Exception]:
        if isinstance(reading, HangUp):
            return Promise.resolved(RuntimeError("the metrics could not be read"))
        return self._worker.run(lambda: generate_latest(reading))


class MetricsClient(asyncio.Protocol):
    def __init__(self, port: MetricsPort) -> None:
        self._port = port
        self._received = bytearray()
        self._is_answered = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.address = self.host = ""
        self.listener = "of the metrics"

    def admit(self, _: tuple[str, int] | None, theirs: tuple[str, int] | None) -> Admission:
        if len(self._port.clients) >= CONNECTIONS_MAX:
            refusal = f"there are {CONNECTIONS_MAX} already"
            log.warning("a client of the metrics port is refused: %s", refusal)
            return Admission(refusal)
        if theirs:
            self.address, self.host = f"{theirs[0]}:{theirs[1]}", str(theirs[0])
        self._port.clients.add(self)
        return Admission()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self not in self._port.clients and self.admit(None, None).refusal is not None:
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(LIFETIME_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._port.clients.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return
        self._received += data
        if _END_OF_REQUEST in self._received:
            self._serve()
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._answer("431 Request Header Fields Too Large")

    def _serve(self) -> None:
        method, _, rest = bytes(self._received).partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            self._answer("405 Method Not Allowed")
        elif path not in _PATHS:
            self._answer("404 Not Found", b"metrics are at /metrics\n")
        else:
            self._is_answered = True
            self._port.page().then(lambda page: self._answer_page(page, with_body=method == b"GET"))

    def _answer_page(self, page: bytes | Exception, *, with_body: bool) -> None:
        if isinstance(page, Exception):
            log.error("the metrics could not be read", exc_info=page)
            self._answer("500 Internal Server Error")
        else:
            self._answer("200 OK", page, content_type=CONTENT_TYPE_LATEST, with_body=with_body)

    def _answer(
        self,
        status: str,
        body: bytes = b"",
        *,
        content_type: str = "text/plain; charset=utf-8",
        with_body: bool = True,
    ) -> None:
        self._is_answered = True
        if self._transport is None:
            return
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"Connection: close\r\n\r\n" + (body if with_body else b""))
        self._transport.close()
