"""A connection to ZooKeeper that can be cut, muted and refused."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.told: tuple[bytes, bytes] | None = None
        """An address that is replaced in what passes to the target, such as that for calling back."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.is_answer_lost = False
        """Requests pass, answers do not."""
        self.is_silent = False
        """Nothing passes, and nobody is told."""
        self.is_refusing = False
        self._is_closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _end(each)

    def refuse(self) -> None:
        """Cut, and let nobody in until `heal`."""
        self.is_refusing = True
        self.cut()

    def heal(self) -> None:
        """What was lost of a connection stays lost: `cut` it too."""
        self.is_refusing = self.is_answer_lost = self.is_silent = False

    def close(self) -> None:
        self._is_closed = True
        _end(self._listener)
        self.cut()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client = self._listener.accept()[0]
                if self.is_refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port), timeout=30)
                server.settimeout(None)
            except OSError:
                continue
            with self._lock:
                self._sockets |= {client, server}
            threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.is_silent and not (is_answer and self.is_answer_lost):
                    sink.sendall(data if is_answer or self.told is None else data.replace(*self.told))
        for each in (source, sink):
            _end(each)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
