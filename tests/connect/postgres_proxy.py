"""Connections to PostgreSQL that are cut behind a statement that was carried out, and before its answer."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Self


class PostgresProxy:
    """Passes everything on. `lose_answer_to(b"COMMIT")`: the next statement with these bytes is carried out, and the
    client learns nothing of it.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = 0
        self._wanted: bytes | None = None
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in [self._listener, *self._sockets]:
            _cut(end)

    def lose_answer_to(self, statement: bytes) -> None:
        self._wanted = statement

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream))
        except OSError:  # the real one is away
            return _cut(client)
        self._sockets += [client, server]
        try:
            self._pass_on(client, server)
        except (OSError, ValueError):  # ValueError: of a socket that another thread has closed meanwhile
            pass
        finally:
            _cut(client, server)
            self._sockets = [end for end in self._sockets if end not in (client, server)]

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for end in ready:
                data = end.recv(65536)
                if not data:
                    return
                if end is server:
                    client.sendall(data)
                    continue
                server.sendall(data)
                if self._wanted is not None and self._wanted in data:
                    self._wanted = None
                    server.recv(65536)  # it comes when the statement is done
                    self.lost += 1
                    return


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
