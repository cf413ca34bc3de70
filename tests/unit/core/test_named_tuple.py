"""`core.named_tuple` behaves as the one of the standard library does, for what this project uses of it."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.core.named_tuple import NamedTuple


def classes_by(base: Any) -> dict[str, Any]:
    """The same classes, of either base."""

    class Point(base):  # type: ignore[misc]  # a base that is a variable
        """A point."""

        x: int
        y: int = 2

        @property
        def total(self) -> int:
            return int(self.x + self.y)

        @classmethod
        def origin(cls) -> Any:
            return cls(0, 0)

    class Shown(base):  # type: ignore[misc]
        a: int

        def __str__(self) -> str:
            return "mine"

    class Below(Point):
        __slots__ = ()

    class Nothing(base):  # type: ignore[misc]
        pass

    return {cls.__name__: cls for cls in (Point, Shown, Below, Nothing)}


OURS, THEIRS = classes_by(NamedTuple), classes_by(typing.NamedTuple)


def attempts(classes: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """Every kind of use, each of which returns something to compare, or raises."""
    point, shown, below, nothing = (classes[name] for name in ("Point", "Shown", "Below", "Nothing"))
    yield lambda: point(1)
    yield lambda: point(1, y=3)
    yield lambda: point(y=1, x=3)
    yield lambda: point()
    yield lambda: point(1, 2, 3)
    yield lambda: point(1, z=2)
    yield lambda: (point(1).x, point(1).y, point(1).total)
    yield lambda: point.origin()
    yield lambda: point(1) == (1, 2)
    yield lambda: {point(1): "a"}[(1, 2)]
    yield lambda: point(1) < point(1, 3)
    yield lambda: [*point(1)]
    yield lambda: point._make([5, 6])
    yield lambda: point._make([5])
    yield lambda: point(1)._replace(y=7)
    yield lambda: point(1)._asdict()
    yield lambda: (point._fields, point._field_defaults, point.__match_args__)
    yield lambda: (point.__name__, point.__qualname__.rpartition(".")[2], point.__module__, point.__doc__)
    yield lambda: point.__annotations__.keys()
    yield lambda: setattr(point(1), "x", 2)
    yield lambda: setattr(point(1), "other", 2)
    yield lambda: hasattr(point(1), "__dict__")
    yield lambda: copy.copy(point(1))
    yield lambda: copy.deepcopy(point([1]))
    yield lambda: (str(shown(1)), repr(shown(1)))
    yield lambda: (below(1), below(1)._replace(x=3), isinstance(below(1), point), below._make([1, 2]).total)
    yield lambda: nothing()
    yield lambda: nothing(1)
    yield lambda: isinstance(point(1), tuple)


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return repr(attempt())
    except (TypeError, AttributeError) as error:
        return type(error)


def test_what_it_does_is_what_the_standard_one_does() -> None:
    ours, theirs = [[outcome(each) for each in attempts(classes)] for classes in (OURS, THEIRS)]
    assert ours == theirs
    assert {TypeError, AttributeError} <= {each for each in theirs if isinstance(each, type)}


def test_a_field_that_there_is_not_cannot_be_replaced() -> None:
    with pytest.raises(TypeError, match="Point has no fields z"):
        OURS["Point"](1)._replace(z=1)


def test_a_class_with_further_bases_is_one_of_the_standard_library() -> None:
    with pytest.raises(TypeError, match="for typing"):
        type(NamedTuple)("Both", (NamedTuple, Exception), {})


class Sent(NamedTuple):
    value: int
    name: str = "x"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_can_be_sent_to_another_process(protocol: int) -> None:
    received = pickle.loads(pickle.dumps(Sent(1), protocol))
    assert received == Sent(1)
    assert type(received) is Sent
