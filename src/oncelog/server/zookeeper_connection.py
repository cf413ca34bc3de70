"""How kazoo connects to ZooKeeper: by TLS with the contexts of this project, and what is told of connections that fail.

kazoo's own TLS would trust the certificates of the system too, ask for a key's password at the terminal, and tell of a
file that is missing with every connection, without its name.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kazoo.handlers.threading import SequentialThreadingHandler

from oncelog.core.config import ConfigError
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.tls import TlsSettings, client_context

if TYPE_CHECKING:
    import ssl

_CONNECTS: Final = "Connecting to %s(%s):%s, use_ssl: %r"
_CONNECTED: Final = "Zookeeper connection established, state: %s"
_ENDS: Final = "Unhandled exception in connection loop"
_OF_NO_INTEREST: Final = ("Transition to CONNECTING", "Failed connecting to Zookeeper")
"""That is said of each lost connection; and at the end, of the attempt that is broken off."""
_CAUSES: Final = (
    ("mismatch", "its certificate is for another name: see zookeeper.ssl.endpoint.identification.algorithm"),
    ("certificate has expired", "its certificate has expired"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted by zookeeper.ssl.truststore.location"),
    (
        r"ALERT_.*CERTIFICATE|CERTIFICATE_REQUIRED|UNKNOWN_CA",
        "it does not accept the certificate in zookeeper.ssl.keystore.location, or asks for one if there is none",
    ),
    (
        "UNEXPECTED_EOF|WRONG_VERSION|RECORD_LAYER",
        "with zookeeper.ssl.client.enable=true the port has to be the one for TLS (secureClientPort)",
    ),
    (
        "connection broken",
        "it has closed the connection: it has no majority, or the port is for TLS (zookeeper.ssl.client.enable=true)",
    ),
)

logger = logging.getLogger("oncelog.server")


def tls_settings(
    keystore: str | None, password: str | None, truststore: str | None, *, checks_name: bool
) -> TlsSettings:
    """The password is that of the store, or of the key if the file is PEM."""
    is_pem = keystore is not None and _is_pem(Path(keystore))
    return TlsSettings(
        keystore_location=keystore,
        keystore_password=None if is_pem else password,
        key_password=password if is_pem else None,
        truststore_location=truststore,
        check_hostname=checks_name,
    )


def _is_pem(path: Path) -> bool:
    try:
        return b"-----BEGIN " in path.read_bytes()
    except OSError:
        return False  # which is told where it is read


def zookeeper_context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises ConfigError, which names the settings as they are here."""
    try:
        return client_context(settings)
    except ConfigError as error:
        text = str(error).replace("ssl.key.password", "ssl.keystore.password")
        raise ConfigError(re.sub(r"\bssl\.", "zookeeper.ssl.", text)) from None


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Files are read for each connection: a certificate that was renewed is taken with the next one."""

    def __init__(self, settings: TlsSettings) -> None:
        super().__init__()
        self._settings = settings

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> ssl.SSLSocket:
        try:
            context = zookeeper_context(self._settings)
        except ConfigError as error:
            raise OSError(str(error)) from error  # which kazoo takes for a lost connection, and tries again
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise


class ConnectionLog(logging.Handler):
    """What kazoo warns of, once until there is a connection again. `on_end` is told why kazoo has given up for good:
    it tells nobody else."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        super().__init__()
        self._on_end = on_end
        self._errors = RepeatedErrors(logger, logging.WARNING)
        self._is_troubled = False
        self._server = "?"

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == _CONNECTS and isinstance(record.args, tuple):
            self._server = f"{record.args[0]}:{record.args[2]}"
        elif record.msg == _CONNECTED:
            self._forget()
        if record.levelno < logging.WARNING or str(record.msg).startswith(_OF_NO_INTEREST):
            return
        problem = _explained(_message(record))
        if record.msg == _ENDS:
            error = record.exc_info[1] if record.exc_info else None
            logger.error("kazoo does not go on after an answer of %s", self._server, exc_info=record.exc_info)
            self._on_end(f"at {self._server} gives an answer that cannot be understood: {error!r}")
            return
        self._is_troubled = True
        self._errors.report((self._server, problem), "ZooKeeper %s: %s", self._server, problem)

    def _forget(self) -> None:
        if self._is_troubled:
            logger.info("ZooKeeper %s: connected", self._server)
        self._is_troubled = False
        self._errors.clear_if(lambda _: True)


def _message(record: logging.LogRecord) -> str:
    """kazoo takes the name of a system error. Time-outs of TLS have none, nor have errors that were made here."""
    text, of_kazoo = record.getMessage(), record.args[0] if isinstance(record.args, tuple) and record.args else None
    cause = of_kazoo.__context__ if isinstance(of_kazoo, Exception) else None
    return f"{text.removesuffix('None')}{cause}" if text.endswith(": None") and isinstance(cause, OSError) else text


def _explained(message: str) -> str:
    text = message.removeprefix("Connection dropped: ").removeprefix("socket connection error: ")
    cause = next((cause for pattern, cause in _CAUSES if re.search(pattern, text)), None)
    return text if cause is None else f"{cause} ({text})"
