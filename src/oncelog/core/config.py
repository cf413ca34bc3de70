"""Settings as tables: keys with type, limits, default and meaning; the one parser for broker, topics, client and Spark.

A `ConfigKey` describes one key, a `ConfigTable` a family of them. A value is text, as in server.properties and in the
protocol, or a plain Python value, and is parsed once, when it enters. The default of a key stands in its table alone: a
dataclass takes it from there with `setting`, and `Settings.bind` fills one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from oncelog.core.dataclass import dataclass
from oncelog.core.invariant import invariant

T = TypeVar("T")

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Values are the type codes of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_INTEGER_LIMITS: Final[Mapping[ConfigType, int]] = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
}


class ConfigError(ValueError):
    """A key or a value that cannot be accepted. The text names the key and what it takes."""

    def __init__(self, text: str, key: str | None = None) -> None:
        super().__init__(text)
        self.key = key
        """The name that is wrong, where it is known: so that a file's line can be named."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    type: ConfigType
    default: ConfigValue | None
    doc: str
    low: float | None = None
    high: float | None = None
    allowed: tuple[str, ...] | None = None
    check: Callable[[Any], str | None] | None = None
    """Finds what else may be wrong with a value."""
    synonym: str | None = None
    """For a topic key: the broker key that gives its default."""
    dynamic: bool = False
    """For a broker key: whether it may be changed while the broker runs."""
    dynamic_low: int | None = None
    """The least it may be changed to while the broker runs: with less, nobody might be let in to change it back."""
    internal: bool = False
    """Accepted, but shown by no describe: for tests."""
    sensitive: bool = False
    """A secret: its value is shown nowhere."""
    no_effect: str | None = None
    """Accepted for the sake of files and programs made for Kafka; why it changes nothing here."""
    refused: str | None = None
    """Known, but not accepted: why, and what to do instead."""

    @property
    def explanation(self) -> str:
        return self.doc if self.no_effect is None else f"{self.doc} It has no effect in Oncelog: {self.no_effect}."

    def parse(self, given: object) -> ConfigValue:
        """Raises ConfigError, which says what was given and what is allowed."""
        text = _text(given)
        if text is None:
            raise self._invalid(repr(given), "neither text nor a number")
        value = self._convert(text.strip())
        if isinstance(value, int | float) and not self._is_within(value):
            raise self._invalid(text, f"must be {self._range()}")
        for word in value if isinstance(value, tuple) else (str(value),):
            if self.allowed is not None and word not in self.allowed:
                raise self._invalid(word, f"must be one of {', '.join(self.allowed)}")
        if self.check is not None and (problem := self.check(value)) is not None:
            raise self._invalid(text, problem)
        return value

    def _is_within(self, number: float) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    def _range(self) -> str:
        if self.low is None or self.high is None:
            return f"at least {self.low}" if self.high is None else f"at most {self.high}"
        return f"between {self.low} and {self.high}"

    def _invalid(self, text: str, problem: str) -> ConfigError:
        given = "[hidden]" if self.sensitive else text or repr(text)
        return ConfigError(f"Invalid value {given} for configuration {self.name}: {problem}", self.name)

    def _convert(self, text: str) -> ConfigValue:
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self._invalid(text, "must be true or false")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
                value = self._number(text, int, "must be a whole number")
                limit = _INTEGER_LIMITS[self.type]
                if not -limit - 1 <= value <= limit:
                    raise self._invalid(text, f"must be between {-limit - 1} and {limit}")
                return value
            case ConfigType.DOUBLE:
                return self._number(text, float, "must be a number")
            case ConfigType.LIST:
                return tuple(word.strip() for word in text.split(",") if word.strip())
            case ConfigType.STRING:
                return text

    def _number(self, text: str, kind: Callable[[str], T], problem: str) -> T:
        try:
            return kind(text)
        except ValueError:
            raise self._invalid(text, problem) from None


def _text(value: object) -> str | None:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return format_value(value) if isinstance(value, str | bool | int | float) else None


def format_value(value: ConfigValue | None) -> str | None:
    """The text form that DescribeConfigs and property files use."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def without_effect(reason: str, *names: str, dynamic: bool = False) -> list[ConfigKey]:
    """Keys of Kafka that mean nothing here. A dot at the end stands for all names that begin so."""
    about = "A setting of Kafka."
    return [ConfigKey(name, ConfigType.STRING, None, about, dynamic=dynamic, no_effect=reason) for name in names]


def refused(reason: str, *names: str) -> list[ConfigKey]:
    """Keys of Kafka that would ask for what is not there. A dot at the end stands for all names that begin so."""
    return [ConfigKey(name, ConfigType.STRING, None, "A setting of Kafka.", refused=reason) for name in names]


def did_you_mean(name: str, known: Iterable[str], *, count: int = 1) -> str:
    """A question to put behind a message about an unknown name, if there are names like it."""
    import difflib  # for messages about mistakes alone

    near = difflib.get_close_matches(name, list(known), n=count, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class ConfigTable:
    """A family of keys.

    `others` are names that are known, but only by name: without effect, or refused. `aliases` are other spellings of a
    key, (key, factor), the finest first; the key itself goes before all of them.
    """

    def __init__(
        self,
        family: str,
        keys: Iterable[ConfigKey],
        *,
        others: Iterable[ConfigKey] = (),
        aliases: Mapping[str, tuple[str, int]] | None = None,
        error: type[ConfigError] = ConfigError,
    ) -> None:
        self.family = family
        self._keys = _by_name(keys)
        self._others = _by_name(others)
        self._aliases = aliases or {}
        self.error = error
        twice = self._keys.keys() & (self._others.keys() | self._aliases.keys())
        invariant(not twice, f"{family}: {sorted(twice)} are declared twice")

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def extended(
        self,
        family: str,
        keys: Iterable[ConfigKey],
        *,
        others: Iterable[ConfigKey] = (),
        prefix: str = "",
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        aliases: Mapping[str, tuple[str, int]] | None = None,
        error: type[ConfigError] | None = None,
    ) -> ConfigTable:
        """A family that has these keys too, under names with a prefix, `others` of the same name in their place, and
        some with changed fields."""
        added = _by_name(others)

        def taken_over(known: Mapping[str, ConfigKey]) -> dict[str, ConfigKey]:
            renamed = (dataclasses.replace(key, name=prefix + name) for name, key in known.items())
            return {key.name: key for key in renamed if key.name not in added}

        own = taken_over(self._keys)
        own |= {name: dataclasses.replace(own[name], **fields) for name, fields in (changes or {}).items()}
        return ConfigTable(
            family,
            [*own.values(), *keys],
            others=[*taken_over(self._others).values(), *added.values()],
            aliases=aliases,
            error=error or self.error,
        )

    @property
    def names(self) -> set[str]:
        """All that are known, also those without effect or refused."""
        return self._keys.keys() | self._others.keys() | self._aliases.keys()

    @property
    def defaults(self) -> Settings:
        return Settings(self)

    def key(self, name: str) -> ConfigKey:
        """Raises ConfigError for a name that is unknown or refused."""
        key = self._keys.get(name) or self._others.get(name) or self._prefixed(name)
        if key is None:
            usable = (key.name for key in (*self, *self._others.values()) if key.refused is None)
            known = [known for known in usable if not known.endswith(".")]
            raise self.error(f"Unknown {self.family} config name: {name}{did_you_mean(name, known)}", name)
        if key.refused is not None:
            raise self.error(f"{name}: {key.refused}", name)
        return key

    def _prefixed(self, name: str) -> ConfigKey | None:
        families = (key for key in self._others.values() if key.name.endswith(".") and name.startswith(key.name))
        return next((dataclasses.replace(key, name=name) for key in families), None)

    def parse(self, entries: Mapping[str, object]) -> Settings:
        """Values by name; None is as if it was not there. Raises ConfigError for the first that is wrong."""
        given = {name: value for name, value in entries.items() if value is not None}
        keys = {name: self.key(name) for name in given if name not in self._aliases}
        try:
            values = {name: key.parse(given[name]) for name, key in keys.items()}
            for alias, (name, factor) in self._aliases.items():
                if alias in given and name not in values:
                    amount = dataclasses.replace(self._keys[name], name=alias).parse(given[alias])
                    values[name] = amount * factor if isinstance(amount, int) and amount > 0 else amount
        except ConfigError as error:
            raise self.error(str(error), error.key) from None
        idle = (key for key in keys.values() if key.no_effect is not None)
        return Settings(self, values, [f"{key.name} has no effect in Oncelog: {key.no_effect}" for key in idle])


def _by_name(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    found: dict[str, ConfigKey] = {}
    for key in keys:
        invariant(key.name not in found, f"{key.name} is declared twice")
        found[key.name] = key
    return found


class Settings:
    """Typed access to a set of parsed values over a table's defaults."""

    def __init__(
        self,
        table: ConfigTable,
        values: Mapping[str, ConfigValue] | None = None,
        warnings: Iterable[str] = (),
        pinned: Iterable[str] = (),
    ) -> None:
        self.table = table
        self.values: dict[str, ConfigValue] = dict(values or {})
        self.warnings = list(warnings)
        """What was given without effect, for whoever starts something with these settings."""
        self.pinned = frozenset(pinned)
        """Those that nothing else overrides: given on the command line."""

    def get(self, name: str) -> ConfigValue | None:
        return self.values[name] if name in self.values else self.table[name].default

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self.get(name)
        if type(value) is not kind:
            raise ConfigError(f"{name} is {value!r}, and not of type {kind.__name__}")
        return value

    def integer(self, name: str) -> int:
        return self._typed(name, int)

    def boolean(self, name: str) -> bool:
        return self._typed(name, bool)

    def text(self, name: str) -> str:
        return self._typed(name, str)

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def words(self, name: str) -> tuple[str, ...]:
        return self._typed(name, tuple)

    def bind(self, cls: type[T], prefix: str = "", /, **others: Any) -> T:
        """A dataclass with the values of the keys that its fields name with `setting`; the others are given here."""
        bound = {
            field.name: field.metadata["convert"](self.get(prefix + field.metadata["key"].name))
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # a dataclass, which a type variable cannot say
            if "key" in field.metadata and field.name not in others
        }
        return cls(**bound, **others)


def setting(key: ConfigKey, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """A field of a dataclass that has the value of a key, and its default."""
    return dataclasses.field(
        default=convert(key.default), metadata={"key": key, "convert": convert}, repr=not key.sensitive
    )
