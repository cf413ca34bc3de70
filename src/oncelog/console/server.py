"""The process of a console: a socket on loopback, the application on it, and a clean end."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import uvicorn

from oncelog.client.admin import Admin
from oncelog.console.application import EVENTS_PATH, make_application
from oncelog.console.page import Console
from oncelog.console.settings import ConsoleSettings
from oncelog.console.visits import OneVisit, Sessions, Visits, decoder_of, for_pages, for_polls
from oncelog.console.watch import ClusterWatch
from oncelog.http_server import BoundedProtocol, HttpServer, bind, server_config
from oncelog.monitoring.snapshot import Poller

__all__ = ["bind", "make_server", "run"]


class ConsoleProtocol(BoundedProtocol):
    streams = frozenset({EVENTS_PATH})


class ConsoleServer(HttpServer):
    """uvicorn waits for open streams when it stops; this one ends them."""

    def __init__(self, config: uvicorn.Config, visits: Visits, ready: Callable[[], None]) -> None:
        super().__init__(config, ready)
        self._visits = visits

    def ending(self) -> None:
        self._visits.stop()


def make_server(visits: Visits, settings: ConsoleSettings, ready: Callable[[], None] = lambda: None) -> ConsoleServer:
    application = make_application(visits, settings)
    return ConsoleServer(server_config(application, ConsoleProtocol, settings.certificate, settings.key), visits, ready)


def run(
    settings: ConsoleSettings, listener: socket.socket, ready: Callable[[], None], until_ended: BinaryIO | None = None
) -> None:
    """Serves until a signal comes, or until a pipe is closed at its other end. The cluster need not answer yet."""
    with _visits(settings) as visits:
        server = make_server(visits, settings, ready)
        if until_ended is not None:
            threading.Thread(target=_stop_at_end, args=(server, until_ended), daemon=True).start()
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
    with Admin(client) as pages, Admin(for_polls(client)) as polls:
        watch = ClusterWatch(Poller(polls), settings.poll_interval_ms)
        yield OneVisit(Console(settings, pages, watch, secrets.token_urlsafe(24), schemas=decoder_of(settings)))


def _stop_at_end(server: ConsoleServer, pipe: BinaryIO) -> None:
    while os.read(pipe.fileno(), 1024):
        pass
    server.stop()
