"""A value that may come later, resolved synchronously.

The broker's logic runs without asyncio: an operation whose result must wait (a committed offset, a parked request,
a long-polling fetch) returns a `Promise`. Callbacks run at once, on the caller's stack, in the order in which they
were added; one that is already resolved costs no turn of the event loop. Errors are values here: an operation that
can fail resolves with a response that carries the error code.

A longer sequence of steps can be a coroutine that awaits promises, run by a `Task`, also without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from oncelog.core.invariant import InvariantError, invariant

T = TypeVar("T")
U = TypeVar("U")


class _Unset:
    pass


_UNSET = _Unset()


class Promise(Generic[T]):
    __slots__ = ("_callbacks", "_value")

    def __init__(self) -> None:
        self._value: T | _Unset = _UNSET
        self._callbacks: list[Callable[[T], None]] = []

    @classmethod
    def resolved(cls, value: T) -> Promise[T]:
        promise = cls()
        promise._value = value
        return promise

    @property
    def done(self) -> bool:
        return self._value is not _UNSET

    @property
    def value(self) -> T:
        value = self._value
        if isinstance(value, _Unset):
            raise InvariantError("the value of an unresolved promise was read")
        return value

    def resolve(self, value: T) -> None:
        invariant(self._value is _UNSET, "a promise was resolved twice")
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[T], None]) -> None:
        if isinstance(self._value, _Unset):
            self._callbacks.append(callback)
        else:
            callback(self._value)

    def map(self, function: Callable[[T], U]) -> Promise[U]:
        if not isinstance(self._value, _Unset):
            return Promise.resolved(function(self._value))
        mapped: Promise[U] = Promise()
        self.then(lambda value: mapped.resolve(function(value)))
        return mapped

    def chain(self, function: Callable[[T], Promise[U]]) -> Promise[U]:
        """As `map`, for a function that returns a promise."""
        if not isinstance(self._value, _Unset):
            return function(self._value)
        chained: Promise[U] = Promise()
        self.then(lambda value: function(value).then(chained.resolve))
        return chained

    def __await__(self) -> Generator[Promise[T], None, T]:
        if not self.done:
            yield self
        return self.value


class Task:
    """Runs a coroutine that awaits nothing but promises, from the call of `start` on."""

    def __init__(self, coroutine: Coroutine[Promise[Any], None, None]) -> None:
        self._coroutine = coroutine
        self._is_running = False
        self._is_stopped = False

    def start(self) -> None:
        self._step()

    def _step(self, _: object = None) -> None:
        if self._is_stopped:
            return
        self._is_running = True
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            self._is_stopped = True
            return
        finally:
            self._is_running = False
        if self._is_stopped:
            self._coroutine.close()
        else:
            awaited.then(self._step)

    def stop(self) -> None:
        """It goes on no further than to its next wait."""
        if not self._is_stopped:
            self._is_stopped = True
            if not self._is_running:
                self._coroutine.close()


def gather(promises: list[Promise[T]]) -> Promise[list[T]]:
    """Resolves with all values, in order, when the last of them is there."""
    gathered: Promise[list[T]] = Promise()
    missing = len([promise for promise in promises if promise._value is _UNSET])
    if missing == 0:
        gathered.resolve([promise._value for promise in promises])  # type: ignore[misc]  # none of them is unset
        return gathered

    def arrived(_: T) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            gathered.resolve([promise._value for promise in promises])  # type: ignore[misc]

    for promise in promises:
        if not promise.done:
            promise.then(arrived)
    return gathered
