"""What the controllers need of ZooKeeper: five operations. A client on the network and a fake for tests provide them.

A multi is all or nothing. A read may be stale, but what one session reads never goes back. After `sync` a read is at
least as new as the sync. All calls and callbacks happen on the thread that owns the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from oncelog.core.promise import Promise

NO_OWNER = 0


class Node(NamedTuple):
    data: bytes
    version: int
    owner: int = NO_OWNER
    """The session of an ephemeral node."""


class Create(NamedTuple):
    path: str
    data: bytes = b""
    is_ephemeral: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int


class Check(NamedTuple):
    path: str
    version: int


class Delete(NamedTuple):
    path: str
    version: int = -1


Operation: TypeAlias = Create | SetData | Check | Delete


class Reason(Enum):
    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    DENIED = "not allowed"
    OTHER = "other"


class Refused(NamedTuple):
    """Nothing of the multi was done, because of this one of its operations."""

    position: int
    reason: Reason
    detail: str = ""


class Lost(NamedTuple):
    """There is no answer. What was asked for may have been done or not."""

    detail: str = ""


class Session(Protocol):
    """Who uses a `ZooKeeper`."""

    def on_connected(self) -> None:
        """There is a connection, of the same session as before or of a new one. Watches of before are gone."""

    def on_disconnected(self, reason: str) -> None:
        """The connection is lost or the session is over. Others may already see this session's nodes vanish."""

    def on_refused(self, problem: str) -> None:
        """ZooKeeper does not let this client in, and will not without another setting or another ACL."""


class ZooKeeper(Protocol):
    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int:
        """What the server has agreed to."""

    def start(self, session: Session) -> None: ...

    def get(self, path: str) -> Promise[Node | Lost | None]: ...

    def children(self, path: str) -> Promise[Sequence[str] | Lost | None]:
        """The names of the nodes below a node, in any order."""

    def multi(self, operations: Sequence[Operation]) -> Promise[Refused | Lost | None]: ...

    def sync(self) -> Promise[Lost | None]: ...

    def watch(self, path: str, on_event: Callable[[], None]) -> Promise[bool | Lost]:
        """Whether the node is there. `on_event` is called once: it was made, changed or deleted, or nobody knows."""

    def close(self) -> None:
        """End the session, and with it its nodes. Nothing is called back afterwards."""
