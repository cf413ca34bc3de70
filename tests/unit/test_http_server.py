"""Clients that hold connections without asking for anything keep nobody out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from oncelog.http_server import REQUESTS_MAX, HttpServer, bind, server_config

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    ready = threading.Event()
    server = HttpServer(server_config(application), ready.set)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert ready.wait(60)
        yield listener.getsockname()
        server.stop()
        thread.join(120)


def ask(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(GET)
        return client.recv(1000)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHos",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx",
        GET,
    ],
    ids=["nothing", "half a request", "half a body", "a request, and then nothing"],
)
def test_connections_that_ask_for_nothing_make_room(said: bytes) -> None:
    with serving() as address, ExitStack() as clients:
        for _ in range(REQUESTS_MAX + 50):
            client = clients.enter_context(socket.create_connection(address, timeout=60))
            client.sendall(said)
        for _ in range(5):
            assert ask(address).startswith(b"HTTP/1.1 200 OK")
