"""The declarative tables of Kafka's messages: a class is a message or a struct inside one, its fields are the wire.

    class EndTxnRequest(Message, api=ApiKey.END_TXN):
        transactional_id: str = string()
        producer_id: int = int64()
        committed: bool = boolean()

Fields follow each other on the wire in the order in which they are written. `since` and `until` bound the message
versions that have a field (both inclusive); elsewhere it keeps its default when decoded and is skipped when encoded.
The versions of a request or response stand with its API key; other messages name theirs (`versions=(0, 1)`).
`nullable=True` allows null in every version, `nullable_since` from one version on. A field with a `tag` lives in the
tagged section of flexible versions. Defaults are Kafka's.

The metaclass turns the fields into slots and writes `__init__` (keyword arguments only). To a type checker the classes
are dataclasses whose every field has a default, which is what a call of a field function looks like.
`oncelog.protocol.compiler` turns a class and a version into an encoder and a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, dataclass_transform

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NULL_UUID
from oncelog.core.invariant import invariant
from oncelog.protocol.api_keys import NEVER, VERSION_MAX, ApiKey


class _Fresh:
    """Marks a default that every message needs for itself, such as an empty list."""

    def __repr__(self) -> str:
        return "<fresh>"


FRESH: Final = _Fresh()


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    kind: str
    default: Any
    since: int = 0
    until: int = VERSION_MAX
    nullable_since: int = NEVER
    tag: int | None = None
    element: Field | None = None
    """Of an array."""
    struct: type[Message] | None = None

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        return version >= self.nullable_since

    def fresh_default(self) -> Any:
        if self.default is not FRESH:
            return self.default
        return self.struct() if self.struct is not None else []


def _number(kind: str, default: float = 0) -> Callable[..., Any]:
    def specify(*, since: int = 0, until: int = VERSION_MAX, default: float = default, tag: int | None = None) -> Any:
        return Field(kind=kind, default=default, since=since, until=until, tag=tag)

    return specify


int8 = _number("int8")
int16 = _number("int16")
int32 = _number("int32")
int64 = _number("int64")
uint16 = _number("uint16")
float64 = _number("float64", 0.0)
boolean = _number("boolean", False)


def uuid(*, since: int = 0, until: int = VERSION_MAX, tag: int | None = None) -> Any:
    return Field(kind="uuid", default=NULL_UUID, since=since, until=until, tag=tag)


def string(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable: bool = False,
    nullable_since: int = NEVER,
    default: str | None = "",
    tag: int | None = None,
) -> Any:
    null = 0 if nullable else nullable_since
    return Field(kind="string", default=default, since=since, until=until, nullable_since=null, tag=tag)


def byte_string(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable: bool = False,
    default: bytes | None = b"",
    tag: int | None = None,
) -> Any:
    null = 0 if nullable else NEVER
    return Field(kind="bytes", default=default, since=since, until=until, nullable_since=null, tag=tag)


def record_batches(*, nullable: bool = True) -> Any:
    """Record batches: decoded to a view of the frame, encoded as a buffer of their own."""
    return Field(kind="records", default=None if nullable else b"", nullable_since=0 if nullable else NEVER)


def array(
    element: Callable[..., Any] | type[Message],
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable: bool = False,
    nullable_since: int = NEVER,
    default: _Fresh | None = FRESH,
    tag: int | None = None,
) -> Any:
    """An array of structs, or of a scalar named by its field function: `array(int32)`."""
    inner: Field = struct(element) if isinstance(element, type) else element()
    null = 0 if nullable else nullable_since
    return Field(kind="array", default=default, since=since, until=until, nullable_since=null, tag=tag, element=inner)


def struct(
    cls: type[Message], *, since: int = 0, until: int = VERSION_MAX, nullable: bool = False, tag: int | None = None
) -> Any:
    """A struct in place. The default of a nullable one is null, as everywhere in Kafka."""
    default = None if nullable else _shared_default(cls) or FRESH
    null = 0 if nullable else NEVER
    return Field(kind="struct", default=default, since=since, until=until, nullable_since=null, tag=tag, struct=cls)


class MessageMeta(type):
    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api: ApiKey | None = None,
        versions: tuple[int, int] = (0, VERSION_MAX),
        flexible: int = NEVER,
    ) -> MessageMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in fields:
            del namespace[key]
        if api is not None:
            versions, flexible = (api.first, api.last), api.flexible
        namespace.update(
            __slots__=tuple(fields),
            FIELDS=MappingProxyType(fields),
            API_KEY=api,
            VERSIONS=versions,
            FLEXIBLE=flexible,
            DECODERS={},
            ENCODERS={},
        )
        if fields:
            namespace["__init__"] = _init_when_used(fields)
        return super().__new__(mcs, name, bases, namespace)


def _init_when_used(fields: Mapping[str, Field]) -> Any:
    """The first message of a class has its `__init__` made: most of those that a process imports are never made."""

    def init(message: Any, **values: Any) -> None:
        cls = next(each for each in type(message).__mro__ if each.__dict__.get("__init__") is init)
        made = cls.__init__ = _make_init(fields)  # type: ignore[misc]  # it has no subclass with another
        made(message, **values)

    return init


def _make_init(fields: Mapping[str, Field]) -> Any:
    scope: dict[str, Any] = {"FRESH": FRESH}
    parameters, body = [], []
    for name, field in fields.items():
        scope[f"default_{name}"] = field.default
        parameters.append(f"{name}=default_{name}")
        if field.default is FRESH:
            scope[f"struct_{name}"] = field.struct
            fresh = "[]" if field.struct is None else f"struct_{name}()"
            body.append(f"    self.{name} = {fresh} if {name} is FRESH else {name}")
        else:
            body.append(f"    self.{name} = {name}")
    exec("\n".join([f"def __init__(self, *, {', '.join(parameters)}):", *body]), scope)
    return scope["__init__"]


@cache
def _shared_default(cls: type[Message]) -> Any:
    """One read-only instance of a struct of scalars, to stand for "left out" without an object per message.

    A fetch response has three tagged structs per partition that are almost never set; encoders compare by identity.
    """
    if not cls.FIELDS or any(field.default is FRESH for field in cls.FIELDS.values()):
        return None
    frozen: Any = type.__new__(MessageMeta, cls.__name__, (cls,), {"__slots__": (), "__setattr__": _refuse_assignment})
    instance = frozen.__new__(frozen)
    for name, field in cls.FIELDS.items():
        object.__setattr__(instance, name, field.default)
    return instance


def _refuse_assignment(message: object, name: str, value: object) -> None:
    raise AttributeError(f"this {type(message).__name__} is the shared default: assign a new one instead of {name}")


@dataclass_transform(kw_only_default=True)
class Message(metaclass=MessageMeta):
    """Base of all messages and of the structs inside them."""

    FIELDS: ClassVar[Mapping[str, Field]]
    API_KEY: ClassVar[int | None]
    VERSIONS: ClassVar[tuple[int, int]]
    """Of a message, both inclusive. Structs have the versions of the message they are in."""
    FLEXIBLE: ClassVar[int]
    """The first version with compact lengths and tagged fields."""
    DECODERS: ClassVar[dict[int, Callable[..., Any]]]
    ENCODERS: ClassVar[dict[int, Callable[..., Any]]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or other.FIELDS is not self.FIELDS:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # messages can change

    def __repr__(self) -> str:
        """Only what differs from the defaults, and of record data only the size."""
        shown = []
        for name, field in self.FIELDS.items():
            value = getattr(self, name)
            if isinstance(value, memoryview):
                shown.append(f"{name}=<{len(value)} bytes>")
            elif value != field.fresh_default():
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def check_version(cls: type[Message], version: int) -> None:
    first, last = cls.VERSIONS
    invariant(first <= version <= last, "%s has versions %d-%d, not %d", cls.__name__, first, last, version)
