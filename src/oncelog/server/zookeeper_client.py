"""A `cluster.zookeeper.ZooKeeper` on the network, with kazoo.

kazoo has threads of its own. Whatever comes from them is handed over to the thread of the broker's state, in the order
in which it comes, and does nothing else there. `KazooRetry` is not used: it would hide that an answer was lost.

The chroot is a part of every path here, and made at the first connection: kazoo cannot make one of two levels itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from oncelog.cluster.zookeeper import Check, Create, Lost, Node, Operation, Reason, Refused, Session, SetData
from oncelog.cluster.zookeeper_nodes import EPOCH
from oncelog.core.address import parse_address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError, Settings, setting
from oncelog.core.dataclass import dataclass
from oncelog.core.promise import Promise

if TYPE_CHECKING:
    from kazoo.client import KazooClient

T = TypeVar("T")
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.2}
"""kazoo alone would wait for up to a minute between two attempts."""
_NEGOTIATED: Final = "negotiated session timeout"
_BLATHER: Final = 5
"""The level at which kazoo logs that."""

logger = logging.getLogger("oncelog.server")


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    connect: str
    """HOST:PORT,HOST:PORT/chroot"""
    session_timeout_ms: int = setting(BROKER_CONFIG["zookeeper.session.timeout.ms"])
    digest: str | None = setting(BROKER_CONFIG["oncelog.zookeeper.digest"], lambda text: text or None)
    """USER:PASSWORD"""
    set_acl: bool = setting(BROKER_CONFIG["zookeeper.set.acl"])
    uses_tls: bool = setting(BROKER_CONFIG["zookeeper.ssl.client.enable"])
    truststore: str | None = setting(BROKER_CONFIG["zookeeper.ssl.truststore.location"])
    keystore: str | None = setting(BROKER_CONFIG["zookeeper.ssl.keystore.location"])
    keystore_password: str | None = setting(BROKER_CONFIG["zookeeper.ssl.keystore.password"])
    checks_hostname: bool = setting(
        BROKER_CONFIG["zookeeper.ssl.endpoint.identification.algorithm"], lambda name: name.upper() == "HTTPS"
    )

    @property
    def hosts(self) -> str:
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        path = self.connect.partition("/")[2].strip("/")
        return f"/{path}" if path else ""


def zookeeper_config(settings: Settings) -> ZooKeeperConfig | None:
    """None if there is no ZooKeeper. Raises ConfigError."""
    connect = settings.optional_text("zookeeper.connect")
    if not connect:
        return None
    _check_addresses(connect)
    _check_path(connect)
    config = settings.bind(ZooKeeperConfig, connect=connect)
    user, _, password = (config.digest or "").partition(":")
    if config.digest and not (user and password):
        raise ConfigError("oncelog.zookeeper.digest: expected USER:PASSWORD", "oncelog.zookeeper.digest")
    if config.set_acl and not config.digest and not (config.uses_tls and config.keystore):
        raise ConfigError(
            "zookeeper.set.acl: nodes would belong to nobody; set oncelog.zookeeper.digest to USER:PASSWORD",
            "zookeeper.set.acl",
        )
    for name in ("zookeeper.ssl.truststore.location", "zookeeper.ssl.keystore.location"):
        if not config.uses_tls and settings.optional_text(name):
            logger.warning(
                "%s has no effect: ZooKeeper is reached without TLS, as zookeeper.ssl.client.enable is false", name
            )
    return config


def _check_path(connect: str) -> None:
    """A path behind each server would be taken for one path behind the first, which is then the only server."""
    path = connect.partition("/")[2].rstrip("/")
    if path and ("," in path or any(name in ("", ".", "..") for name in path.split("/"))):
        raise ConfigError(
            f"zookeeper.connect: /{path} is not a path of ZooKeeper; there is one path, behind the last server, as in "
            "10.0.0.1:2181,10.0.0.2:2181/oncelog/orders",
            "zookeeper.connect",
        )


def _check_addresses(connect: str) -> None:
    for text in connect.partition("/")[0].split(","):
        try:
            parse_address(text.strip())
        except ValueError as error:
            raise ConfigError(f"zookeeper.connect: {error}", "zookeeper.connect") from error


class ZooKeeperClient:
    """`hand_over` runs a call on the thread of the broker's state, as `call_soon_threadsafe` of a loop does."""

    def __init__(self, config: ZooKeeperConfig, hand_over: Callable[[Callable[[], None]], object]) -> None:
        self._config = config
        self._hand_over = hand_over
        self._session: Session | None = None
        self._is_closed = False
        self._has_chroot = False
        self._timeout = _NegotiatedTimeout(config.session_timeout_ms)
        self._client = _new_client(config, self._timeout, lambda problem: self._call(lambda: self._refuse(problem)))

    @property
    def session_id(self) -> int:
        known = self._client.client_id
        return 0 if known is None else int(known[0])

    @property
    def session_timeout_ms(self) -> int:
        return self._timeout.value_ms

    def start(self, session: Session) -> None:
        self._session = session
        self._client.add_listener(lambda state: self._call(lambda: self._on_state(str(state))))
        self._client.start_async()

    def close(self) -> None:
        """The session is ended by a thread, which waits for the servers for a while."""
        if not self._is_closed:
            self._is_closed = True
            threading.Thread(target=self._stop, name="oncelog-zookeeper-close").start()

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # Operations

    def get(self, path: str) -> Promise[Node | Lost | None]:
        def convert(result: Any) -> Node | None:
            data, stat = result
            return Node(data, stat.version, stat.ephemeralOwner)

        return self._ask(self._client.get_async(self._path(path)), convert)

    def children(self, path: str) -> Promise[Sequence[str] | Lost | None]:
        return self._ask(self._client.get_children_async(self._path(path)), lambda names: names)

    def multi(self, operations: Sequence[Operation]) -> Promise[Refused | Lost | None]:
        transaction = self._client.transaction()
        for operation in operations:
            path = self._path(operation.path)
            if isinstance(operation, Create):
                transaction.create(path, operation.data, ephemeral=operation.is_ephemeral)
            elif isinstance(operation, SetData):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, Check):
                transaction.check(path, operation.version)
            else:
                transaction.delete(path, operation.version)
        return self._ask(transaction.commit_async(), refusal)

    def sync(self) -> Promise[Lost | None]:
        return self._ask(self._client.sync_async(self._config.chroot or "/"), lambda _: None)

    def watch(self, path: str, on_event: Callable[[], None]) -> Promise[bool | Lost]:
        result = self._client.exists_async(self._path(path), watch=_Watcher(self, on_event))
        return self._ask(result, lambda stat: stat is not None).map(lambda found: found or False)

    def _path(self, path: str) -> str:
        return self._config.chroot + path

    def _ask(self, result: Any, convert: Callable[[Any], T]) -> Promise[T | Lost | None]:
        promise: Promise[T | Lost | None] = Promise()
        result.rawlink(lambda answered: self._call(lambda: promise.resolve(self._answer(answered, convert))))
        return promise

    def _answer(self, answered: Any, convert: Callable[[Any], T]) -> T | Lost | None:
        from kazoo.exceptions import NoAuthError, NoNodeError

        if answered.exception is None:
            return convert(answered.value)
        if isinstance(answered.exception, NoNodeError):
            return None
        problem = f"{type(answered.exception).__name__} {answered.exception}".strip()
        if isinstance(answered.exception, NoAuthError):
            self._refuse(f"does not let this controller in: {_explained(answered.exception)}")
        return Lost(problem)

    def _call(self, function: Callable[[], None]) -> None:
        def run() -> None:
            if not self._is_closed:
                function()

        try:
            self._hand_over(run)
        except RuntimeError:
            # The loop has ended before this client was told to.
            logger.debug("an event of ZooKeeper came after the end", exc_info=True)

    # The connection

    def _on_state(self, state: str) -> None:
        if self._session is None:
            return
        if state != "CONNECTED":
            if str(self._client.client_state) == "AUTH_FAILED":
                self._refuse("does not accept the credentials of this controller: oncelog.zookeeper.digest")
                return
            self._session.on_disconnected("the session is over" if state == "LOST" else "the connection is lost")
        elif self._has_chroot:
            self._session.on_connected()
        else:
            self._make_chroot(self._levels())

    def _levels(self) -> list[str]:
        names = self._config.chroot.split("/")[1:]
        return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]

    def _make_chroot(self, levels: Sequence[str]) -> None:
        """Make the levels of the chroot one after the other. Those above the last may be used by others, and are
        open to them."""
        if not levels:
            self._has_chroot = True
            if self._config.set_acl:
                self._look_at_acls()
            if self._session is not None:
                self._session.on_connected()
            return
        from kazoo.security import OPEN_ACL_UNSAFE

        # Without an ACL kazoo would take that of all other nodes.
        acl = OPEN_ACL_UNSAFE if len(levels) > 1 else None
        result = self._client.create_async(levels[0], b"", acl=acl)
        result.rawlink(lambda answered: self._call(lambda: self._on_level(levels, answered.exception)))

    def _on_level(self, levels: Sequence[str], error: Exception | None) -> None:
        from kazoo.exceptions import (
            AuthFailedError,
            ConnectionClosedError,
            ConnectionLoss,
            NoAuthError,
            NodeExistsError,
            SessionExpiredError,
        )

        of_connection = (AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError)
        if error is None or isinstance(error, NodeExistsError):
            self._make_chroot(levels[1:])
        elif isinstance(error, NoAuthError):
            # Nothing may be made there. That is not asked for if somebody else has made it before.
            found = self._client.exists_async(levels[0])
            found.rawlink(lambda answered: self._call(lambda: self._on_closed_level(levels, error, answered)))
        elif not isinstance(error, of_connection):
            # The next connection begins anew, and may be there before this is heard of.
            self._refuse_level(levels[0], error)

    def _on_closed_level(self, levels: Sequence[str], error: Exception, answered: Any) -> None:
        from kazoo.exceptions import NoAuthError

        # A level that may not even be looked at can have one below it that may be used.
        is_hidden = isinstance(answered.exception, NoAuthError) and len(levels) > 1
        if is_hidden or (answered.exception is None and answered.value is not None):
            self._make_chroot(levels[1:])
        elif isinstance(answered.exception, NoAuthError) or answered.exception is None:
            self._refuse_level(levels[0], error)

    def _look_at_acls(self) -> None:
        """What others have made, or controllers without `zookeeper.set.acl`, is as open as before."""
        for path in (self._config.chroot or "/", self._path(EPOCH)):
            result = self._client.get_acls_async(path)
            result.rawlink(lambda answered, path=path: self._call(lambda: self._warn_if_open(path, answered)))

    def _warn_if_open(self, path: str, answered: Any) -> None:
        if answered.exception is None and any(_lets_all_write(acl) for acl in answered.value[0]):
            logger.warning(
                "zookeeper.set.acl: everybody may change what is in %s of ZooKeeper, which is older than this setting. "
                "Whoever can do so can be controller; see docs/cluster.md",
                path,
            )

    def _refuse_level(self, path: str, error: Exception) -> None:
        self._refuse(f"does not let this controller make {path}: {_explained(error)}")

    def _refuse(self, problem: str) -> None:
        if self._session is not None:
            self._session.on_refused(f"ZooKeeper {problem}")


def refusal(results: Sequence[Any]) -> Refused | None:
    """kazoo raises nothing if a multi fails: each operation has an error in the place of its result.

    That of the one that was refused tells why. Those before it were rolled back, those behind it not tried.
    """
    from kazoo.exceptions import (
        BadVersionError,
        InvalidACLError,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        RolledBackError,
        RuntimeInconsistency,
    )

    reasons = {
        NoNodeError: Reason.NO_NODE,
        NodeExistsError: Reason.NODE_EXISTS,
        BadVersionError: Reason.BAD_VERSION,
        NoAuthError: Reason.DENIED,
        InvalidACLError: Reason.DENIED,
    }
    errors = [(position, result) for position, result in enumerate(results) if isinstance(result, Exception)]
    if not errors:
        return None
    followers = (RolledBackError, RuntimeInconsistency)
    position, error = next(((at, each) for at, each in errors if not isinstance(each, followers)), errors[0])
    return Refused(position, reasons.get(type(error), Reason.OTHER), _explained(error))


def _explained(error: Exception) -> str:
    """The error, with the setting that may be wrong."""
    from kazoo.exceptions import InvalidACLError, NoAuthError

    text = f"{type(error).__name__} {error}".strip()
    if isinstance(error, NoAuthError):
        return f"{text}; oncelog.zookeeper.digest has to name a user whom the ACLs there allow it"
    if isinstance(error, InvalidACLError):
        return f"{text}; zookeeper.set.acl needs credentials that the server knows: oncelog.zookeeper.digest"
    return text


def _lets_all_write(acl: Any) -> bool:
    from kazoo.security import Permissions

    return acl.id.scheme == "world" and bool(acl.perms & ~Permissions.READ)


class _Watcher(NamedTuple):
    """kazoo keeps a set of them for each node until something happens there, which may take months: one that is equal
    is not added to it."""

    client: ZooKeeperClient
    on_event: Callable[[], None]

    def __call__(self, _: object) -> None:
        self.client._call(self.on_event)


class _NegotiatedTimeout(logging.Filter):
    """Reads from kazoo's log which session time a server has agreed to: kazoo has no other way to tell."""

    def __init__(self, asked_ms: int) -> None:
        super().__init__()
        self.value_ms = asked_ms

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == _BLATHER:
            if _NEGOTIATED in str(record.msg) and isinstance(record.args, tuple):
                self.value_ms = int(str(record.args[2]))
            return False
        return True


def _new_client(config: ZooKeeperConfig, timeout: _NegotiatedTimeout, on_end: Callable[[str], None]) -> KazooClient:
    """Raises ConfigError, also for files of TLS that cannot be read: no connection would tell of them so early."""
    try:
        from kazoo.client import KazooClient
        from kazoo.security import CREATOR_ALL_ACL

        from oncelog.server.zookeeper_connection import ConnectionLog, TlsHandler, tls_settings, zookeeper_context
    except ImportError:
        raise ConfigError("zookeeper.connect needs kazoo: pip install 'oncelog[zookeeper]'") from None
    handler = None
    if config.uses_tls:
        tls = tls_settings(
            config.keystore, config.keystore_password, config.truststore, checks_name=config.checks_hostname
        )
        zookeeper_context(tls)
        handler = TlsHandler(tls)
    kazoo_logger = logging.Logger(f"oncelog.zookeeper.{id(timeout)}", _BLATHER)
    kazoo_logger.addFilter(timeout)
    kazoo_logger.addHandler(ConnectionLog(on_end))
    return KazooClient(
        hosts=config.hosts,
        timeout=config.session_timeout_ms / 1000,
        handler=handler,
        auth_data=[("digest", config.digest)] if config.digest else None,
        default_acl=CREATOR_ALL_ACL if config.set_acl else None,
        connection_retry=dict(_RECONNECT),
        logger=kazoo_logger,
        use_ssl=config.uses_tls,
    )
