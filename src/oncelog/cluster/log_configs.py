"""What topics set, as settings of their logs: one object for all topics that set the same, as most do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.core.topic_settings import BrokerSettings
from oncelog.storage.log_config import LogConfig

KEPT_MAX: Final = 1_000
"""Sets of settings. Behind so many changes of them, all are made anew."""


class LogConfigs:
    """The settings of logs, for one set of broker settings. When those change, the broker makes another one."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker
        self._known: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, configs: Mapping[str, str]) -> LogConfig:
        """`configs` are a topic's own."""
        key = frozenset(configs.items())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KEPT_MAX:
                self._known.clear()
            known = LogConfig.from_settings(self._broker.topic_settings(configs), self._broker.settings)
            self._known[key] = known
        return known
