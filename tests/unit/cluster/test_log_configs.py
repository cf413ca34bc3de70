from __future__ import annotations

import pytest

from oncelog.cluster import log_configs
from oncelog.cluster.log_configs import LogConfigs
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.topic_settings import BrokerSettings


def configs_of(**static: str) -> LogConfigs:
    parsed = BROKER_CONFIG.parse({name.replace("_", "."): value for name, value in static.items()})
    return LogConfigs(BrokerSettings(parsed, {}, "1"))


def test_topics_that_set_the_same_share_one_config() -> None:
    configs = configs_of(log_retention_ms="1000")
    assert configs.of({"segment.bytes": "2000000", "segment.ms": "5"}) is configs.of(
        {"segment.ms": "5", "segment.bytes": "2000000"}
    )
    assert configs.of({}) is configs.of({})
    assert configs.of({}).retention_ms == 1000


def test_topics_that_set_something_else_do_not() -> None:
    configs = configs_of()
    assert [configs.of({"segment.ms": value}).segment_ms for value in ("5", "6", "5")] == [5, 6, 5]


def test_settings_that_change_all_the_time_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_configs, "KEPT_MAX", 3)
    configs = configs_of()
    for value in range(1, 20):
        assert configs.of({"segment.ms": str(value)}).segment_ms == value
        assert len(configs._known) <= 3
