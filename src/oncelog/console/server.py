"""The process of a console: a socket on loopback, the application on it, and a clean end."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Final

import uvicorn

from oncelog.client.admin import Admin
from oncelog.console.application import make_application
from oncelog.console.page import Console
from oncelog.console.settings import ConsoleSettings
from oncelog.console.watch import ClusterWatch
from oncelog.monitoring.snapshot import Poller

PAGE_TIMEOUT_MS: Final = 5_000
"""How long a page waits for the cluster at most: people do not wait longer."""
CONNECTIONS_MAX: Final = 200
BACKLOG: Final = 128


class ConsoleServer(uvicorn.Server):
    """uvicorn waits for open streams for ever when it stops; this ends them."""

    def __init__(self, config: uvicorn.Config, console: Console) -> None:
        super().__init__(config)
        self._console = console

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._console.watch.stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """From another thread."""
        self._console.watch.stop()
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


def make_server(console: Console) -> ConsoleServer:
    config = uvicorn.Config(
        make_application(console),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS_MAX,
        ws="none",
        proxy_headers=False,
    )
    return ConsoleServer(config, console)


def run(settings: ConsoleSettings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until a signal comes. The cluster need not answer yet."""
    client = replace(
        settings.client, default_api_timeout_ms=min(settings.client.default_api_timeout_ms, PAGE_TIMEOUT_MS)
    )
    with Admin(client) as pages, Admin(client) as polls:
        watch = ClusterWatch(Poller(polls), settings.poll_interval_ms)
        console = Console(settings, pages, watch, secrets.token_urlsafe(24))
        ready()
        make_server(console).run(sockets=[listener])
