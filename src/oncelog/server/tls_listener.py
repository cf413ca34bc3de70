"""TLS on the side of the broker: handshakes count as connections, and certificates can change.

A handshake takes the context that is newest when it begins, so that nobody is refused when certificates change, and
connections that exist go on. The files of certificates are looked at every few seconds; if new ones cannot be used, an
error is logged, and those from before stay in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

from oncelog.core.config import ConfigError
from oncelog.server import audit
from oncelog.server.connection_limits import Admission
from oncelog.server.listening import BACKLOG
from oncelog.tls import HANDSHAKE_S_MAX, SHUTDOWN_S_MAX, TlsSettings, server_context

if TYPE_CHECKING:
    from oncelog.core.worker import Worker

log = logging.getLogger("oncelog.server")

HANDSHAKE_S_MIN: Final = 0.1
PAUSE_S: Final = 0.5
"""After a failure to accept, as when there are no descriptors left."""
_Stamp = tuple[int, int, int]


class Certificates:
    """The certificates of one listener. Raises ConfigError if they cannot be used at the start."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        named = (settings.keystore_location, settings.truststore_location)
        self._files = [Path(name) for name in named if name]
        self._stamps = self._look()
        self.context = server_context(settings)

    def renew(self, worker: Worker) -> None:
        """Read the certificates again if a file has changed."""
        worker.run(self._read_if_changed).then(self._use)

    def _read_if_changed(self) -> tuple[list[_Stamp | None], ssl.SSLContext | ConfigError] | None:
        stamps = self._look()
        if stamps == self._stamps:
            return None
        try:
            return stamps, server_context(self._settings)
        except ConfigError as error:
            return stamps, error

    def _use(self, read: tuple[list[_Stamp | None], ssl.SSLContext | ConfigError] | Exception | None) -> None:
        if read is None:
            return
        if isinstance(read, Exception):
            log.error("certificates could not be looked at: %s", read)
            return
        self._stamps, found = read
        if isinstance(found, ConfigError):
            log.error("certificates have changed and cannot be used; those from before stay in use: %s", found)
        else:
            self.context = found
            log.info(
                "certificates have changed, and are used for new connections: %s", ", ".join(map(str, self._files))
            )

    def _look(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Client(Protocol):
    """A protocol of asyncio for one connection, which counts from its handshake on."""

    address: str
    host: str
    listener: str

    def admit(self, ours: tuple[str, int] | None, theirs: tuple[str, int] | None) -> Admission:
        """Whether there may be one more."""


C = TypeVar("C", bound=Client)


def sockets_of(server: asyncio.Server) -> list[socket.socket]:
    """Those that it has bound, to be used in its place."""
    sockets = [socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets]
    server.close()
    return sockets


class TlsListener(Generic[C]):
    """Accepts clients itself, because event loops tell of a client with TLS only after its handshake."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        certificates: Certificates,
        new_connection: Callable[[], C],
        forget: Callable[[C], None],
    ) -> None:
        self._certificates = certificates
        self._sockets = sockets
        self._new_connection = new_connection
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for sock in self._sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
            self._run(self._accept_clients(sock))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for sock in self._sockets:
            sock.close()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_clients(self, sock: socket.socket) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(sock)
            except OSError as error:
                log.error("a connection could not be accepted: %s", error)
                await asyncio.sleep(PAUSE_S)
            else:
                self._run(self._shake_hands(client))

    async def _shake_hands(self, client: socket.socket) -> None:
        connection = self._new_connection()
        try:
            admission = connection.admit(client.getsockname(), client.getpeername())
            if admission.delay_ms:
                await asyncio.sleep(admission.delay_ms / 1000)
            if admission.refusal is not None:
                client.close()
                return
            end_s = self._loop.time() + HANDSHAKE_S_MAX
            if not await asyncio.wait_for(self._speaks(client), HANDSHAKE_S_MAX):
                # Somebody who only looks whether anybody listens, as commands do.
                log.debug("%s said nothing", connection.address)
                self._forget(connection)
                client.close()
                return
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.BaseProtocol, connection),
                client,
                ssl=self._certificates.context,
                ssl_handshake_timeout=max(HANDSHAKE_S_MIN, end_s - self._loop.time()),
                ssl_shutdown_timeout=SHUTDOWN_S_MAX,
            )
        except (OSError, EOFError) as error:
            reason = _reason(error)
            log.info("a TLS handshake of %s failed: %s", connection.address, reason)
            if _is_about_certificate(error) and self._certificates.context.verify_mode is not ssl.CERT_NONE:
                audit.tell_failed_login(connection.host, connection.listener, audit.CERTIFICATE, reason)
            self._forget(connection)
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise

    async def _speaks(self, client: socket.socket) -> bool:
        """Whether a byte has come, or the connection is closed without one."""
        client.setblocking(False)
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(client, lambda: None if readable.done() else readable.set_result(None))
        try:
            await readable
        finally:
            self._loop.remove_reader(client)
        try:
            return client.recv(1, socket.MSG_PEEK) != b""
        except ConnectionError:
            return False


def _is_about_certificate(error: Exception) -> bool:
    """Whether the handshake has failed because the client has a wrong certificate, or none."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"it was not over after {HANDSHAKE_S_MAX:g} s"
    if isinstance(error, ssl.SSLError) and error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "it does not speak TLS"
    return getattr(error, "reason", None) or str(error) or type(error).__name__
