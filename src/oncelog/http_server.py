"""A small HTTP server for a socket that is bound already: uvicorn with bounds on waiting, and a clean end."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from oncelog.core.address import is_loopback

CONNECTIONS_MAX: Final = 200
REQUESTS_MAX: Final = 2 * CONNECTIONS_MAX
"""With those of connections that have just been closed: what serves them ends a moment later."""
LOOK_EVERY_S: Final = 10.0
"""How long a request may take to arrive, at most twice as long."""
ANSWER_S: Final = 120.0
"""How long an answer may take, until it has been read."""
BACKLOG: Final = 128
_numbers: Final = itertools.count()
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A signal that is ignored, as under nohup, stays ignored."""


class BoundedProtocol(H11Protocol):
    """uvicorn waits for ever for the rest of a request, and for a client that does not read its answer.

    This one looks at each connection again and again, and cuts those off on which nothing has happened in between. If
    there are as many as may be, a new one takes the place of the oldest one that waits for its client.
    """

    streams: ClassVar[frozenset[str]] = frozenset()
    """Paths whose answers do not end."""
    _seen: RequestResponseCycle | None = None
    _is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._number = next(_numbers)
        if len(self.connections) >= CONNECTIONS_MAX:
            self._displace_oldest()
        self.loop.call_later(LOOK_EVERY_S, self._look)

    def _displace_oldest(self) -> None:
        others = [each for each in self.connections if isinstance(each, BoundedProtocol) and each is not self]
        oldest = min((each for each in others if each.is_idle), key=lambda each: each._number, default=None)
        if oldest is not None:
            oldest.transport.abort()
            self.connections.discard(oldest)  # now: the next one may come before the loop tells of its end

    @property
    def is_idle(self) -> bool:
        """Whether it is the client's turn: to ask for something, or to say the rest of it."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_stream = cycle is not None and not cycle.response_complete and cycle.scope["path"] in self.streams
        if self._is_waiting and cycle is self._seen and not is_stream:
            self.transport.abort()
            return
        self._is_waiting, self._seen = True, cycle
        is_answering = cycle is not None and not cycle.response_complete
        self.loop.call_later(ANSWER_S if is_answering else LOOK_EVERY_S, self._look)


class HttpServer(uvicorn.Server):
    """uvicorn raises its signal again afterwards. Here a signal is the usual way to end: the exit code is 0."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        before = {one: signal.signal(one, self.handle_exit) for one in signals}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ending()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """Begin to end. It may be called from another thread."""
        self.ending()
        self.should_exit = True

    def ending(self) -> None:
        """What must stop before open answers are waited for."""


def server_config(
    application: Any,
    protocol: type[BoundedProtocol] = BoundedProtocol,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=protocol,
        timeout_graceful_shutdown=1,
        limit_concurrency=REQUESTS_MAX,
        ws="none",
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Raises ValueError, which says what is wrong with the two files."""
    if (certificate is None) != (key is None):
        raise ValueError("--certificate and --key belong together")
    if certificate is None or key is None:
        return
    try:
        # A key with a password would be asked for on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ValueError(
            f"{certificate} and {key} cannot be used: {reason}. They are PEM files, of a certificate and of its key "
            "without a password"
        ) from error


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine, or is one of the names that the server was given.

    A server on loopback can be reached by web pages of others, through the browser of whoever visits them: also by one
    whose own name was bound to 127.0.0.1 afterwards.
    """
    name = _part(f"//{host}", "hostname")
    return name in names or is_loopback(name)


def origin_host(origin: str) -> str:
    """Host and port of an Origin header; empty if it names none."""
    return _part(origin, "netloc")


def _part(url: str, name: str) -> str:
    try:
        return getattr(urlsplit(url), name) or ""
    except ValueError:
        return ""


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
