"""The attempts of one call that changes something: an earlier one may have been carried out without an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from oncelog.client.errors import AbortableError, ConnectionLost, KafkaError

IN_DOUBT: Final = "an attempt got no clear answer, so this call may have done it"


E = TypeVar("E", bound=KafkaError)


def doubted(error: E) -> E:
    """The same error, which tells that an attempt got no clear answer."""
    if not error.in_doubt:
        error.in_doubt = True
        error.message = f"{error.message.rstrip('.')}; {IN_DOUBT}"
        error.args = (f"{error.code.name}: {error.message}",)
    return error


class Attempts:
    def __init__(self) -> None:
        self._unanswered = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a request and its answer. A request that was sent and not answered is in doubt."""
        self._unanswered += 1
        try:
            yield
        except ConnectionLost:
            raise
        except KafkaError:
            # The broker does not know such a request, or it has no place for a value.
            self._unanswered -= 1
            raise
        self._unanswered -= 1

    def doubt(self) -> None:
        """An answer came, and does not tell whether the request was carried out."""
        self._unanswered += 1

    @property
    def in_doubt(self) -> bool:
        return self._unanswered > 0


@contextmanager
def explained(attempts: Attempts | None) -> Iterator[None]:
    """Around all attempts of a change and what is made of their answers.

    Neither giving up nor a refusal of the last attempt means that nothing was done: rights, owners and members may have
    changed since the first one. An AbortableError does mean it, and its abort would tell if it did not.
    """
    try:
        yield
    except KafkaError as error:
        if attempts is not None and attempts.in_doubt and not isinstance(error, AbortableError):
            doubted(error)
        raise
