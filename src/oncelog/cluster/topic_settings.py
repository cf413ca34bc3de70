"""Where a topic's settings come from: its own, the broker's (set while running, or in its file), the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from oncelog.core.config import ConfigKey, ConfigTable, ConfigValue, Settings, format_value
from oncelog.core.topic_config import TOPIC_CONFIG


class Source(IntEnum):
    """Values are the source codes of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


class BrokerSettings:
    """The broker's settings in order of precedence: this node's, all nodes' (both set while running), its file."""

    def __init__(self, static: Settings, dynamic: Mapping[str, Mapping[str, str]], node: str) -> None:
        self.table: ConfigTable = static.table
        self._layers: list[tuple[Source, Mapping[str, ConfigValue]]] = [
            (Source.DYNAMIC_BROKER, self.table.parse(dynamic.get(node, {})).values),
            (Source.DYNAMIC_DEFAULT_BROKER, self.table.parse(dynamic.get("", {})).values),
            (Source.STATIC_BROKER, static.values),
        ]
        merged: dict[str, ConfigValue] = {}
        for _, values in reversed(self._layers):
            merged.update(values)
        self.settings = Settings(self.table, merged)

    def synonyms(self, key: ConfigKey) -> list[Synonym]:
        found = [
            Synonym(key.name, format_value(values[key.name]), source)
            for source, values in self._layers
            if key.name in values
        ]
        if key.default is not None:
            found.append(Synonym(key.name, format_value(key.default), Source.DEFAULT))
        return found

    def keys_without_effect(self) -> list[ConfigKey]:
        """Those of Kafka that were set, in the broker's file or while it runs."""
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
        found = [Synonym(key.name, configs[key.name], Source.TOPIC)] if key.name in configs else []
        if key.synonym is not None and key.synonym in self.table:
            found += self.synonyms(self.table[key.synonym])
        elif key.default is not None:
            found.append(Synonym(key.name, format_value(key.default), Source.DEFAULT))
        return found
