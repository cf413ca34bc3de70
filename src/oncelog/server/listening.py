"""The sockets of a node's listeners: bound at once, served later, with the newest certificates."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oncelog.core.address import Address
from oncelog.core.config import ConfigError
from oncelog.server.listener import Listener, listen_problem

if TYPE_CHECKING:
    from oncelog.core.worker import Worker
    from oncelog.server.connection import Connection
    from oncelog.server.tls_listener import Certificates, TlsListener
    from oncelog.tls import TlsSettings

BACKLOG: Final = 512
LOOK_MS: Final = 5_000
"""How often certificates are looked at."""


class Listening:
    """`forget` is called for connections that end before their handshake is over."""

    def __init__(
        self,
        worker: Worker,
        new_connection: Callable[[Listener], Connection],
        forget: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._new_connection = new_connection
        self._forget = forget
        self._servers: list[asyncio.Server] = []
        self._tls_listeners: list[TlsListener[Connection]] = []
        self._certificates: list[Certificates] = []
        self._is_closed = False

    async def bind(self, listener: Listener) -> Address:
        """Bind the listener, and return its address. Nobody is served yet. Raises ConfigError."""
        certificates = None if listener.tls is None else certificates_of(listener.tls)
        new_connection = partial(self._new_connection, listener)
        try:
            bound_socket = _bind_without_lookup(listener.address)
            place: Any = listener.address._asdict() if bound_socket is None else {"sock": bound_socket}
            server = await self._loop.create_server(new_connection, backlog=BACKLOG, start_serving=False, **place)
        except OSError as error:
            raise ConfigError(f"listeners: {listen_problem(listener.address, error)}", "listeners") from error
        bound = Address(listener.address.host, server.sockets[0].getsockname()[1])
        if certificates is None:
            self._servers.append(server)
        else:
            self.keep_new(certificates)
            from oncelog.server.tls_listener import TlsListener, sockets_of

            self._tls_listeners.append(TlsListener(sockets_of(server), certificates, new_connection, self._forget))
        return bound

    def keep_new(self, certificates: Certificates) -> None:
        """Their files are looked at from `start` on."""
        self._certificates.append(certificates)

    async def start(self) -> None:
        for tls_listener in self._tls_listeners:
            tls_listener.start()
        for server in self._servers:
            await server.start_serving()
        if self._certificates:
            self._loop.call_later(LOOK_MS / 1000, self._renew_certificates)

    def close(self) -> None:
        self._is_closed = True
        for server in self._servers:
            server.close()
        for tls_listener in self._tls_listeners:
            tls_listener.close()

    def _renew_certificates(self) -> None:
        if not self._is_closed:
            for certificates in self._certificates:
                certificates.renew(self._worker)
            self._loop.call_later(LOOK_MS / 1000, self._renew_certificates)


def _bind_without_lookup(address: Address) -> socket.socket | None:
    """None for a name, or for IPv6. A look-up of an address would cost a start some milliseconds: for the codec of
    international names, and for a thread."""
    try:
        socket.inet_pton(socket.AF_INET, address.host)
    except OSError:
        return None
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def certificates_of(settings: TlsSettings) -> Certificates:
    """Raises ConfigError."""
    from oncelog.server.tls_listener import Certificates

    return Certificates(settings)
