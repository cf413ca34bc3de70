"""The process of a registry: a socket, the application on it, and a clean end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from oncelog.http_server import HttpServer, server_config
from oncelog.registry.application import Application
from oncelog.registry.store import Store


def make_server(
    store: Store,
    host_names: Collection[str] = (),
    users: Mapping[str, str] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    ready: Callable[[], None] = lambda: None,
) -> HttpServer:
    return HttpServer(server_config(Application(store, host_names, users), certificate=certificate, key=key), ready)
