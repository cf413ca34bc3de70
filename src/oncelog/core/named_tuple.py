"""`NamedTuple` of the standard library, but cheap to import.

The standard one compiles the annotation of each field and the `__new__` of each class when the class is made. Here
`__new__` alone is compiled, for the first object of a class, as `core.dataclass` does with `__init__`. Classes with
type parameters take the standard one. To a type checker this is the standard one.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]  # what reads a field in the standard one
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

_new: Final = tuple.__new__

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Maker(type):
        def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(mcs, name, bases, namespace)
            if len(bases) > 1:
                raise TypeError("a class with further bases is one for typing.NamedTuple")
            return _make_class(name, namespace)

    class NamedTuple(metaclass=_Maker):
        pass


class _Tuple(tuple[Any, ...]):
    """What all of them have."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, /, **named: Any) -> Any:
        result = self._make(map(named.pop, self._fields, self))  # type: ignore[attr-defined]  # each class has its own
        if named:
            raise TypeError(f"{type(self).__name__} has no fields {', '.join(named)}")
        return result


def _make_class(name: str, namespace: dict[str, Any]) -> type:
    fields = tuple(namespace.get("__annotations__", ()))
    defaults = {field: namespace[field] for field in fields if field in namespace}
    namespace.update({field: _tuplegetter(index, None) for index, field in enumerate(fields)})

    def new(cls: type, *values: Any, **named: Any) -> Any:
        made.__new__ = staticmethod(_compile_new(fields, defaults))  # type: ignore[method-assign]
        return made.__new__(cls, *values, **named)  # by the class: `cls` may be one below it

    def make(cls: type, values: Iterable[Any]) -> Any:
        result: Any = _new(cls, values)
        if len(result) != len(fields):
            raise TypeError(f"expected {len(fields)} values, got {len(result)}")
        return result

    made = type(
        name,
        (_Tuple,),
        {
            "__slots__": (),
            "__match_args__": fields,
            "_fields": fields,
            "_field_defaults": defaults,
            "__new__": new,
            "_make": classmethod(make),
            **namespace,
        },
    )
    return made


def _compile_new(fields: tuple[str, ...], defaults: Mapping[str, Any]) -> Callable[..., Any]:
    names = ", ".join(fields)
    new: Any = eval(f"lambda _cls, {names}: _new(_cls, ({names},))" if fields else "lambda _cls: _new(_cls)", globals())
    new.__defaults__ = tuple(defaults.values())
    return new  # type: ignore[no-any-return]
