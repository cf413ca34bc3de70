"""Configuration: Kafka's key names, types, defaults and validation, as tables.

A `ConfigKey` describes one key, a `ConfigTable` a family of them (broker, topic). Values travel as text, as they do
in server.properties and in the protocol, and are parsed once when they enter. The tables themselves are in
`broker_config.py` and `topic_config.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

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
    CLASS = 8
    PASSWORD = 9


_INTEGER_LIMITS: Mapping[ConfigType, int] = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
}


class ConfigError(ValueError):
    """A key or a value that cannot be accepted. The text names the key and what it takes."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    type: ConfigType
    default: ConfigValue | None
    doc: str
    low: float | None = None
    high: float | None = None
    allowed: tuple[str, ...] | None = None
    synonym: str | None = None
    """For a topic key: the broker key that gives its default."""
    dynamic: bool = False
    """For a broker key: whether it may be changed while the broker runs."""
    internal: bool = False
    """Accepted, but shown by no describe: for tests."""
    check: Callable[[ConfigValue], str | None] | None = None

    def parse(self, text: str) -> ConfigValue:
        text = text.strip()
        value = self._convert(text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.low is not None and value < self.low:
                raise ConfigError(
                    f"Invalid value {text} for configuration {self.name}: must be at least {_plain(self.low)}"
                )
            if self.high is not None and value > self.high:
                raise ConfigError(
                    f"Invalid value {text} for configuration {self.name}: must be at most {_plain(self.high)}"
                )
        if self.allowed is not None:
            for word in value if isinstance(value, tuple) else (str(value),):
                if word not in self.allowed:
                    raise self._invalid(word, f"must be one of {', '.join(self.allowed)}")
        if self.check is not None and (problem := self.check(value)) is not None:
            raise self._invalid(text, problem)
        return value

    def _invalid(self, text: str, problem: str) -> ConfigError:
        return ConfigError(f"Invalid value {text} for configuration {self.name}: {problem}")

    def _convert(self, text: str) -> ConfigValue:
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self._invalid(text, "must be true or false")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
                return self._convert_integer(text)
            case ConfigType.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise self._invalid(text, "must be a number") from None
            case ConfigType.LIST:
                return tuple(word.strip() for word in text.split(",") if word.strip())
            case _:
                return text

    def _convert_integer(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self._invalid(text, "must be a whole number") from None
        limit = _INTEGER_LIMITS[self.type]
        if not -limit - 1 <= value <= limit:
            raise self._invalid(text, f"does not fit a {self.type.name.lower()}")
        return value


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def format_value(value: ConfigValue | None) -> str | None:
    """The text form that DescribeConfigs and property files use."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


class ConfigTable:
    """A family of keys; knows the nearest key to a misspelt one."""

    def __init__(
        self,
        family: str,
        keys: Iterable[ConfigKey],
        *,
        without_effect: Iterable[str] = (),
        dynamic_without_effect: Iterable[str] = (),
    ) -> None:
        self.family = family
        self._keys = {key.name: key for key in keys}
        self._without_effect = frozenset(without_effect)
        self._families_without_effect = tuple(name for name in self._without_effect if name.endswith("."))
        self._dynamic_without_effect = frozenset(dynamic_without_effect)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def has_no_effect(self, name: str) -> bool:
        """A key that Kafka knows and that means nothing here: accepted with a warning so that files carry over."""
        return (
            name in self._without_effect
            or name in self._dynamic_without_effect
            or name.startswith(self._families_without_effect)
        )

    def key(self, name: str) -> ConfigKey:
        if name in self._keys:
            return self._keys[name]
        if self.has_no_effect(name):
            about = "A setting of Kafka that has no effect in Oncelog."
            return ConfigKey(name, ConfigType.STRING, None, about, dynamic=name in self._dynamic_without_effect)
        raise ConfigError(self.unknown(name))

    def unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._keys, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"Unknown {self.family} config name: {name}{hint}"

    def parse(self, entries: Mapping[str, str]) -> dict[str, ConfigValue]:
        return {name: self.key(name).parse(text) for name, text in entries.items()}


class Settings:
    """Typed access to a set of parsed values over a table's defaults."""

    def __init__(self, table: ConfigTable, values: Mapping[str, ConfigValue] | None = None) -> None:
        self.table = table
        self.values: dict[str, ConfigValue] = dict(values or {})

    def get(self, name: str) -> ConfigValue | None:
        return self.values[name] if name in self.values else self.table[name].default

    def integer(self, name: str) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} is not a whole number: {value!r}")
        return value

    def number(self, name: str) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} is not a number: {value!r}")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is not true or false: {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise ConfigError(f"{name} is not text: {value!r}")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def words(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if not isinstance(value, tuple):
            raise ConfigError(f"{name} is not a list: {value!r}")
        return value


def decode_properties(data: bytes) -> str:
    """The text of a properties file: UTF-8, else Latin-1, in which Java reads them."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties format as far as configuration files use it: comments, `=` or `:`, trailing backslash."""
    entries: dict[str, str] = {}
    pending = ""
    for raw in text.splitlines():
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        cut = min((i for i in (line.find("="), line.find(":")) if i >= 0), default=-1)
        if cut < 0:
            raise ConfigError(f"not a key=value line: {line!r}")
        entries[line[:cut].strip()] = line[cut + 1 :].strip()
    return entries
