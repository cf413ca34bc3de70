"""The settings of connectors, as tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncelog.connect.row_changes import FORMATS
from oncelog.core.config import ConfigError, ConfigKey, ConfigTable, ConfigType, setting

_STRING, _INT, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST


class ConnectorConfigError(ConfigError):
    """A setting of a connector that is missing, unknown or malformed."""


def _name_problem(text: str) -> str | None:
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", text):
        return None
    return "letters, digits, dots, underscores and hyphens; keep it for ever: what is committed is found by it"


def _given(text: Any) -> str | None:
    return None if text else "must be given"


SINK_TABLE = ConfigTable(
    "sink connector",
    [
        ConfigKey("name", _STRING, "", "Names the connector for ever.", check=_name_problem),
        ConfigKey("url", _STRING, "", "The database: a file of SQLite, or postgresql://...", check=_given,
                  sensitive=True),
        ConfigKey("topics", _LIST, (), "The topics to read.", check=_given),
        ConfigKey("table", _STRING, "{topic}", "The table to write; {topic} stands for the record's topic.",
                  check=_given),
        ConfigKey("mode", _STRING, "upsert", "upsert: one row per key, no value deletes it; append: a row per record.",
                  allowed=("upsert", "append")),
        ConfigKey("key", _LIST, (), "The columns that rows are found by; without it the table's primary key."),
        ConfigKey("format", _STRING, "rows", "What values are: JSON objects of columns, or Debezium's envelope.",
                  allowed=FORMATS),
        ConfigKey("start", _STRING, "earliest", "Where a partition that was never read begins.",
                  allowed=("earliest", "latest")),
        ConfigKey("unknown_fields", _STRING, "fail", "What to do with a field that the table has no column for.",
                  allowed=("fail", "ignore")),
        ConfigKey("errors", _STRING, "fail", "What to do with a record that cannot be written.",
                  allowed=("fail", "dead-letters")),
        ConfigKey("batch_rows", _INT, 5000, "Records of one transaction at most.", low=1),
        ConfigKey("batch_ms", _INT, 100, "How long a transaction waits for more records.", low=0),
    ],
    error=ConnectorConfigError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    name: str
    client: Mapping[str, Any]
    """Settings of all Kafka clients, by Kafka's names."""
    url: str
    topics: tuple[str, ...]
    table: str = setting(SINK_TABLE["table"])
    mode: str = setting(SINK_TABLE["mode"])
    key: tuple[str, ...] = setting(SINK_TABLE["key"])
    format: str = setting(SINK_TABLE["format"])
    start: str = setting(SINK_TABLE["start"])
    unknown_fields: str = setting(SINK_TABLE["unknown_fields"])
    errors: str = setting(SINK_TABLE["errors"])
    batch_rows: int = setting(SINK_TABLE["batch_rows"])
    batch_ms: int = setting(SINK_TABLE["batch_ms"])


def sink_settings(given: Mapping[str, Any], client: Mapping[str, Any]) -> SinkSettings:
    """Raises ConnectorConfigError, which names the setting."""
    settings = SINK_TABLE.parse({**dict.fromkeys(("name", "url", "topics"), ""), **given})
    return settings.bind(
        SinkSettings,
        client=client,
        name=settings.text("name"),
        url=settings.text("url"),
        topics=settings.words("topics"),
    )
