"""`core.dataclass` behaves as the one of the standard library does, for what this project uses of it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, field
from typing import Any, Generic, TypeVar

import pytest

from oncelog.core.dataclass import dataclass

T = TypeVar("T")


def classes_by(decorate: Callable[..., Any]) -> dict[str, Any]:
    """The same classes, by either decorator."""

    @decorate(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)

        @property
        def total(self) -> int:
            return self.x + self.y

    @decorate(slots=True)
    class Counter(Generic[T]):
        name: str = field(repr=False)
        hits: int = field(default=0, compare=False)

    @decorate(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int
        second: str | None = None

    @decorate(frozen=True, slots=True, eq=False)
    class Same:
        value: int

    @decorate(frozen=True, slots=True)
    class Derived(Named):
        third: int = 3
        double: int = field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", self.third * 2)

    @decorate(slots=True)
    class Own:
        a: int
        b: int = field(default=5, init=False)
        c: list[int] = field(default_factory=list, init=False)

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    @decorate(slots=True)
    class Nothing:
        pass

    return {cls.__name__: cls for cls in (Point, Counter, Named, Same, Derived, Own, Nothing)}


OURS, THEIRS = classes_by(dataclass), classes_by(dataclasses.dataclass)


def attempts(classes: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """Every kind of use, each of which returns something to compare, or raises."""
    point, named, derived, own = (classes[name] for name in ("Point", "Named", "Derived", "Own"))
    counter, same, nothing = (classes[name] for name in ("Counter", "Same", "Nothing"))
    yield lambda: repr(point(1))
    yield lambda: repr(point(1, tags=["a"]))
    yield lambda: point(1).tags is point(1).tags
    yield lambda: point(1).total
    yield lambda: point()
    yield lambda: point(1, 2, [], 4)
    yield lambda: point(1, z=2)
    yield lambda: point(1) == point(1, 2)
    yield lambda: point(1) == (1, 2, [])
    yield lambda: hash(point(1))
    yield lambda: {named(first=1): "a"}[named(first=1)]
    yield lambda: setattr(point(1), "x", 2)
    yield lambda: delattr(point(1), "x")
    yield lambda: repr(dataclasses.replace(point(1), y=5))
    yield lambda: dataclasses.replace(point(1), z=5)
    yield lambda: [each.name for each in dataclasses.fields(point)]
    yield lambda: dataclasses.is_dataclass(point)
    yield lambda: point.__match_args__
    yield lambda: point.__qualname__
    yield lambda: repr(copy.copy(point(1, tags=["a"])))
    yield lambda: hasattr(point(1), "__dict__")
    yield lambda: repr(counter("n", 3))
    yield lambda: repr(counter[int]("n"))
    yield lambda: counter("n", 1) == counter("n", 2)
    yield lambda: counter("n") == counter("m")
    yield lambda: hash(counter("n"))
    yield lambda: setattr(counter("n"), "other", 1)
    yield lambda: named(1)
    yield lambda: repr(named(first=1, second="b"))
    yield lambda: same(1) == same(1)
    yield lambda: repr(derived(4, first=1))
    yield lambda: derived(4, first=1).double
    yield lambda: derived(4, first=1) == derived(4, first=2)
    yield lambda: derived(4, first=1) == named(first=1)
    yield lambda: derived.__match_args__
    yield lambda: repr(dataclasses.replace(derived(4, first=1), third=7))
    yield lambda: (own(1), own(1).b, own(1).c)
    yield lambda: own(1) == own(2)
    yield lambda: own(1, 2)
    yield lambda: hash(own(1))
    yield lambda: nothing() == nothing()
    yield lambda: repr(nothing())


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return repr(attempt())
    except (TypeError, AttributeError) as error:
        return type(error), str(error).partition(".__init__()")[2] or type(error)


def test_what_it_does_is_what_the_standard_one_does() -> None:
    ours, theirs = [[outcome(each) for each in attempts(classes)] for classes in (OURS, THEIRS)]
    assert ours == theirs
    kinds = {each[0] for each in theirs if isinstance(each, tuple)}
    assert {TypeError, FrozenInstanceError, AttributeError} <= kinds


@dataclass(frozen=True, slots=True)
class Sent:
    value: int
    rest: tuple[int, ...] = ()


def test_an_object_can_be_pickled_and_matched() -> None:
    sent = Sent(1, (2,))
    assert pickle.loads(pickle.dumps(sent)) == sent
    match sent:
        case Sent(value, rest):
            assert (value, rest) == (1, (2,))
        case _:
            pytest.fail("no match")


def test_an_init_is_made_with_the_first_object_even_if_that_one_is_of_a_class_below() -> None:
    @dataclass(slots=True)
    class Above:
        x: int

    class Below(Above):
        pass

    placeholder = Above.__init__
    assert Below(1).x == 1
    assert Above.__init__ is not placeholder
    assert Above(2).x == 2


def test_what_it_does_not_do_is_refused() -> None:
    with pytest.raises(TypeError, match="without slots"):
        dataclass(slots=False)

    with pytest.raises(TypeError, match=r"Shared\.LIMIT: class variables"):

        @dataclass(slots=True)
        class Shared:
            LIMIT: ClassVar[int] = 3  # type: ignore[name-defined]  # noqa: F821  a text is all that is looked at
