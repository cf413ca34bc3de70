"""Where a topic's settings come from: its own, the broker's (set while running, or in its file), the default."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from oncelog.core.config import ConfigError, ConfigKey, ConfigTable, ConfigValue, Settings, format_value
from oncelog.core.config_resources import ConfigSource
from oncelog.core.dataclass import dataclass
from oncelog.core.topic_config import TOPIC_CONFIG

log = logging.getLogger("oncelog.server")


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: ConfigSource


class NotDynamicError(ConfigError):
    """A key that cannot be changed while a broker runs."""


def dynamic_settings(table: ConfigTable, configs: Mapping[str, str]) -> Settings:
    """What is to be changed while a broker runs. Raises ConfigError where that is not possible."""
    settings = table.parse(configs)
    for name in configs:
        key = table.key(name)
        value = settings.values[name]
        if not key.dynamic:
            raise NotDynamicError(
                f"Cannot update these configs dynamically: {name}. Set it in the broker's file and restart."
            )
        if _at_least(key, value) != value:
            raise ConfigError(
                f"Invalid value {value} for configuration {name}: less than {key.dynamic_low} can only be set in the "
                "broker's file or on its command line, because it could keep out whoever would change it back"
            )
    return settings


def _at_least(key: ConfigKey, value: ConfigValue) -> ConfigValue:
    return max(key.dynamic_low, value) if key.dynamic_low is not None and isinstance(value, int) else value


class BrokerSettings:
    """The broker's settings in order of precedence: its command line's, this node's, all nodes' (both set while
    running), its file's."""

    def __init__(self, static: Settings, dynamic: Mapping[str, Mapping[str, str]], node: str) -> None:
        self.table: ConfigTable = static.table
        self._layers: list[tuple[ConfigSource, Mapping[str, ConfigValue]]] = [
            (ConfigSource.STATIC_BROKER, {name: static.values[name] for name in static.pinned}),
            (ConfigSource.DYNAMIC_BROKER, self._safe(dynamic.get(node, {}))),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._safe(dynamic.get("", {}))),
            (
                ConfigSource.STATIC_BROKER,
                {name: value for name, value in static.values.items() if name not in static.pinned},
            ),
        ]
        self.pinned = static.pinned
        merged: dict[str, ConfigValue] = {}
        for _, values in reversed(self._layers):
            merged.update(values)
        self.settings = Settings(self.table, merged)

    def _safe(self, stored: Mapping[str, str]) -> Mapping[str, ConfigValue]:
        """Stored values below a minimum, from before there were minimums, are raised to it."""
        return {name: _at_least(self.table.key(name), value) for name, value in self.table.parse(stored).values.items()}

    def synonyms(self, key: ConfigKey) -> list[Synonym]:
        found = [
            Synonym(key.name, format_value(values[key.name]), source)
            for source, values in self._layers
            if key.name in values
        ]
        if key.default is not None:
            found.append(Synonym(key.name, format_value(key.default), ConfigSource.DEFAULT))
        return found

    def keys_without_effect(self) -> list[ConfigKey]:
        """The keys of Kafka without effect here that were set, in the broker's file or while it runs."""
        names = {name for _, values in self._layers for name in values if name not in self.table}
        return [self.table.key(name) for name in sorted(names)]

    def topic_settings(self, configs: Mapping[str, str]) -> Settings:
        """Typed values of a topic: what it sets itself over what the broker sets for all topics."""
        values: dict[str, ConfigValue] = {}
        for key in TOPIC_CONFIG:
            if key.name in configs:
                values[key.name] = key.parse(configs[key.name])
            elif key.synonym is not None and key.synonym in self.settings.values:
                values[key.name] = self.settings.values[key.synonym]
        return Settings(TOPIC_CONFIG, values)

    def topic_synonyms(self, key: ConfigKey, configs: Mapping[str, str]) -> list[Synonym]:
        found = [Synonym(key.name, configs[key.name], ConfigSource.TOPIC)] if key.name in configs else []
        if key.synonym is not None and key.synonym in self.table:
            found += self.synonyms(self.table[key.synonym])
        elif key.default is not None:
            found.append(Synonym(key.name, format_value(key.default), ConfigSource.DEFAULT))
        return found


def known_settings(table: ConfigTable, configs: Mapping[str, str], whose: str) -> dict[str, str]:
    """Kafka's controllers know settings, and values of them, that have no meaning here."""
    known = {}
    for name, value in configs.items():
        try:
            table.key(name).parse(value)
        except ConfigError as error:
            log.warning("%s is used without its %s=%s: %s", whose, name, value, error)
        else:
            known[name] = value
    return known
