"""The process of a console: a socket on loopback, the application on it, and a clean end."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import BinaryIO, Final

import uvicorn

from oncelog.client.admin import Admin
from oncelog.console.application import make_application
from oncelog.console.page import Console
from oncelog.console.settings import ConsoleSettings
from oncelog.console.visits import OneVisit, Sessions, Visits, for_pages
from oncelog.console.watch import ClusterWatch
from oncelog.monitoring.snapshot import Poller

CONNECTIONS_MAX: Final = 200
BACKLOG: Final = 128
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""One that is ignored, as by nohup, stays so."""


class ConsoleServer(uvicorn.Server):
    """uvicorn waits for open streams when it stops, and raises its signal again afterwards.

    This one ends the streams, and a signal is the usual way to end it: the exit code is 0, as of `oncelog serve`.
    """

    def __init__(self, config: uvicorn.Config, visits: Visits) -> None:
        super().__init__(config)
        self._visits = visits

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
        self._visits.stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """From another thread."""
        self._visits.stop()
        self.should_exit = True


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


def make_server(visits: Visits, settings: ConsoleSettings) -> ConsoleServer:
    config = uvicorn.Config(
        make_application(visits, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS_MAX,
        ws="none",
        proxy_headers=False,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    return ConsoleServer(config, visits)


def run(
    settings: ConsoleSettings, listener: socket.socket, ready: Callable[[], None], until_ended: BinaryIO | None = None
) -> None:
    """Serves until a signal comes, or until a pipe is closed at its other end. The cluster need not answer yet."""
    with _visits(settings) as visits:
        server = make_server(visits, settings)
        if until_ended is not None:
            threading.Thread(target=_stop_at_end, args=(server, until_ended), daemon=True).start()
        ready()
        server.run(sockets=[listener])


@contextmanager
def _visits(settings: ConsoleSettings) -> Iterator[Visits]:
    if settings.log_in:
        sessions = Sessions(settings)
        try:
            yield sessions
        finally:
            sessions.close()
        return
    client = for_pages(settings.client)
    with Admin(client) as pages, Admin(client) as polls:
        watch = ClusterWatch(Poller(polls), settings.poll_interval_ms)
        yield OneVisit(Console(settings, pages, watch, secrets.token_urlsafe(24)))


def _stop_at_end(server: ConsoleServer, pipe: BinaryIO) -> None:
    while os.read(pipe.fileno(), 1024):
        pass
    server.stop()
