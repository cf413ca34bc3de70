"""`dataclass` of the standard library for classes with slots, but cheap to import.

The standard one writes the methods of each class as source and compiles them when the class is made: that was a fifth
of the time in which a broker starts, for classes of which most are never used by a process. Here `__init__` alone is
compiled, for the first object of a class; the other methods are shared. `dataclasses.field`, `fields` and `replace`
work with these classes, and to a type checker this is the standard one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

Fields = dict[str, "Field[Any]"]

_FIELDS: Final = "__dataclass_fields__"
_FIELD: Final = dataclasses._FIELD  # type: ignore[attr-defined]  # the mark by which `fields` knows a field

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
        if not slots:
            raise TypeError("a class without slots is one for dataclasses.dataclass")
        return lambda cls: _with_slots(cls, frozen=frozen, eq=eq, kw_only=kw_only)


def _with_slots(cls: type, *, frozen: bool, eq: bool, kw_only: bool) -> type:
    """Another class of the same name: slots cannot be added to one that is there."""
    namespace = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    inherited: Fields = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= vars(base).get(_FIELDS, {})
    own = _take_fields(cls, namespace, kw_only=kw_only)
    fields = inherited | own
    namespace |= {
        "__qualname__": cls.__qualname__,
        "__slots__": tuple(name for name in own if name not in inherited),
        "__match_args__": tuple(each.name for each in fields.values() if each.init and not each.kw_only),
        _FIELDS: fields,
    }
    namespace.setdefault("__repr__", _repr)
    if eq:
        _add_comparison(namespace, [each.name for each in fields.values() if each.compare], frozen=frozen)
    if frozen:
        namespace |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        namespace |= {"__getstate__": _get_state, "__setstate__": _set_state}

    def init(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = _make_init(made, fields.values(), frozen=frozen)  # type: ignore[misc]
        made.__init__(self, *values, **named)  # type: ignore[misc]  # by the class: `self` may be of one below it

    namespace.setdefault("__init__", init)
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    return made


def _take_fields(cls: type, namespace: dict[str, Any], *, kw_only: bool) -> Fields:
    """The fields that the class itself has, whose defaults go out of the namespace: slots have their names."""
    fields: Fields = {}
    for name, annotation in inspect.get_annotations(cls).items():
        if "ClassVar" in annotation:
            raise TypeError(f"{cls.__qualname__}.{name}: class variables stand outside of the class here")
        default = namespace.pop(name, MISSING)
        field: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
        field.name, field.type, field.kw_only, field._field_type = name, annotation, kw_only, _FIELD
        fields[name] = field
    return fields


def _add_comparison(namespace: dict[str, Any], names: list[str], *, frozen: bool) -> None:
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def equals(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    if "__eq__" not in namespace:
        namespace |= {"__eq__": equals}
        namespace.setdefault("__hash__", hashed if frozen else None)


def _make_init(cls: type, fields: Iterable[Field[Any]], *, frozen: bool) -> Any:
    scope: dict[str, Any] = {"LEFT_OUT": MISSING}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body = []
    for field in fields:
        name, value = field.name, field.name
        if field.default is not MISSING:
            scope[f"default_{name}"] = field.default
            parameter, value = f"{name}=default_{name}", value if field.init else f"default_{name}"
        elif field.default_factory is not MISSING:
            scope[f"new_{name}"] = field.default_factory
            new = f"new_{name}()"
            parameter, value = f"{name}=LEFT_OUT", f"{new} if {name} is LEFT_OUT else {name}" if field.init else new
        elif field.init:
            parameter = name
        else:
            continue
        if field.init:
            parameters[bool(field.kw_only)].append(parameter)
        if frozen:
            scope[f"set_{name}"] = getattr(cls, name).__set__
            body.append(f"    set_{name}(self, {value})")
        else:
            body.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    head = ", ".join(["self", *parameters[False], *(["*"] if parameters[True] else []), *parameters[True]])
    exec("\n".join([f"def __init__({head}):", *(body or ["    pass"])]), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
