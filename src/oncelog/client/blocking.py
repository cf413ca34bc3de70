"""What the clients with blocking calls share: a cluster on the background loop, and its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from oncelog.client import loop
from oncelog.client.cluster import Cluster
from oncelog.client.config import ClientConfig
from oncelog.client.connections import open_cluster
from oncelog.client.errors import IllegalState

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class Blocking:
    """A client whose calls run on the process's background loop while the caller waits. Close it, or use `with`.

    With another client in place of settings it works over the connections of that one, and leaves them open.
    """

    def __init__(self, config: ClientConfig | Blocking) -> None:
        self._owner = config if isinstance(config, Blocking) else None
        """The client whose connections this one uses, if not its own. The reference keeps them open."""
        self.config: ClientConfig = config.config if isinstance(config, Blocking) else config
        self.cluster: Cluster = config.cluster if isinstance(config, Blocking) else open_cluster(config)
        self._pid = os.getpid()
        self._thread = loop.background()

    def _is_at_home(self) -> bool:
        """Not in a child of the process that has made it: the connections and their threads are the parent's."""
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self._is_at_home():
            raise IllegalState(
                f"this {type(self).__name__} was made in process {self._pid}: give the child process its configuration "
                "and make a new one there"
            )

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_process()
        except IllegalState:
            coroutine.close()
            raise
        return self._thread.run(coroutine)

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A plain function, called on the loop."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self._run(call())

    def close(self) -> None:
        """Close the connections. Calls that still wait end with ConnectionLost."""
        if self._is_at_home():
            self._run(self._shut_down())

    async def _shut_down(self) -> None:
        if self._owner is None:
            await self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> None:
        raise TypeError(f"a {type(self).__name__} holds connections and cannot be pickled: pickle its ClientConfig")


def blocking(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """A blocking method: runs the method of the asynchronous client in `core`, and waits for it."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = client._run(method(client.core, *args, **kwargs))
        return result

    return update_wrapper(call, method)


def delegating(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that is the one of `core`."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(client.core, *args, **kwargs)

    return update_wrapper(call, method)
