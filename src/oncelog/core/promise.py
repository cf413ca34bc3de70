"""A value that may come later, resolved synchronously.

The broker's logic runs without asyncio: an operation whose result must wait (a committed offset, a parked request,
a long-polling fetch) returns a `Promise`. Callbacks run at once, on the caller's stack, in the order in which they
were added; one that is already resolved costs no turn of the event loop. Errors are values here: an operation that
can fail resolves with a response that carries the error code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oncelog.core.invariant import invariant

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
        invariant(not isinstance(self._value, _Unset), "the value of an unresolved promise was read")
        return self._value  # type: ignore[return-value]  # narrowed by the invariant above

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
        """As `map`, for what takes time itself."""
        if not isinstance(self._value, _Unset):
            return function(self._value)
        chained: Promise[U] = Promise()
        self.then(lambda value: function(value).then(chained.resolve))
        return chained


def gather(promises: list[Promise[T]]) -> Promise[list[T]]:
    """Resolves with all values, in order, when the last of them is there."""
    gathered: Promise[list[T]] = Promise()
    missing = sum(1 for promise in promises if not promise.done)
    if missing == 0:
        gathered.resolve([promise.value for promise in promises])
        return gathered

    def arrived(_: T) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            gathered.resolve([promise.value for promise in promises])

    for promise in promises:
        if not promise.done:
            promise.then(arrived)
    return gathered
