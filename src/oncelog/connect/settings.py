"""The settings of connectors, as tables."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncelog.connect.row_changes import FORMATS
from oncelog.core.codec import PRODUCER_CODECS
from oncelog.core.config import ConfigError, ConfigKey, ConfigTable, ConfigType, setting

_STRING, _INT, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST


class ConnectorConfigError(ConfigError):
    """A setting of a connector that is missing, unknown or malformed."""


def _name_problem(text: str) -> str | None:
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,40}", text):
        return None
    return "up to 40 letters, digits, dots, underscores and hyphens; keep it for ever: what is committed is found by it"


def _given(text: Any) -> str | None:
    return None if text else "must be given"


_NAME = ConfigKey("name", _STRING, "", "Names the connector for ever.", check=_name_problem)
_FORMAT = ConfigKey("format", _STRING, "rows", "What values are: JSON objects of columns, or Debezium's envelope.",
                    allowed=FORMATS)  # fmt: skip


def _registry_problem(url: str) -> str | None:
    if importlib.util.find_spec("fastavro") is None or importlib.util.find_spec("jsonschema") is None:
        return "needs what reads schemas: pip install 'oncelog[registry]'"
    return None if re.match(r"https?://.", url) else "must be the address of a schema registry, http://host:port"


SINK_TABLE = ConfigTable(
    "sink connector",
    [
        _NAME,
        ConfigKey("url", _STRING, "", "The database: a file of SQLite, or postgresql://...", check=_given,
                  sensitive=True),
        ConfigKey("topics", _LIST, (), "The topics to read.", check=_given),
        ConfigKey("table", _STRING, "{topic}", "The table to write; {topic} stands for the record's topic.",
                  check=_given),
        ConfigKey("mode", _STRING, "upsert", "upsert: one row per key, no value deletes it; append: a row per record.",
                  allowed=("upsert", "append")),
        ConfigKey("key", _LIST, (), "The columns that rows are found by; without it the table's primary key."),
        _FORMAT,
        ConfigKey("schema_registry", _STRING, None,
                  "The address of a schema registry: values, and keys, have a schema there instead of being JSON.",
                  check=_registry_problem, sensitive=True),
        ConfigKey("start", _STRING, "earliest", "Where a partition that was never read begins.",
                  allowed=("earliest", "latest")),
        ConfigKey("unknown_fields", _STRING, "fail", "What to do with a field that the table has no column for.",
                  allowed=("fail", "ignore")),
        ConfigKey("errors", _STRING, "fail", "What to do with a record that cannot be written.",
                  allowed=("fail", "dead-letters")),
        ConfigKey("corrupt_batches", _STRING, "fail",
                  "What to do with records that cannot be read, such as those of a batch with a wrong checksum. "
                  "skip: they are left out, each time with a warning that names topic, partition and offsets.",
                  allowed=("fail", "skip")),
        ConfigKey("batch_rows", _INT, 10_000, "Records of one transaction at most.", low=1),
        ConfigKey("batch_ms", _INT, 100, "How long a transaction waits for more records.", low=0),
    ],
    error=ConnectorConfigError,
)  # fmt: skip


SOURCE_TABLE = ConfigTable(
    "source connector",
    [
        _NAME,
        ConfigKey("url", _STRING, "", "The database, postgresql://...; its user needs the attribute REPLICATION.",
                  check=_given, sensitive=True),
        ConfigKey("publication", _STRING, "", "The publication whose tables are copied.", check=_given),
        ConfigKey("slot", _STRING, None, "The replication slot, made at the first start; without it, oncelog_NAME.",
                  check=lambda text: None if re.fullmatch(r"[a-z0-9_]{1,63}", text)
                  else "lower case letters, digits and underscores"),
        ConfigKey("topic", _STRING, "{schema}.{table}", "The topic of a table; {database} may be used too.",
                  check=_given),
        _FORMAT,
        ConfigKey("schema_registry", _STRING, None,
                  "The address of a schema registry: keys and values of tables are Avro instead of JSON.",
                  check=_registry_problem, sensitive=True),
        ConfigKey("outbox_table", _STRING, None, "A table, with its schema, whose new rows are events for topics.",
                  check=lambda text: None if "." in text else "the name of the schema too, as in public.outbox"),
        ConfigKey("outbox_prefix", _STRING, None, "The prefix of messages (pg_logical_emit_message) that are events."),
        ConfigKey("outbox_topic", _STRING, "outbox.{aggregatetype}", "The topic of an event.", check=_given),
        ConfigKey("snapshot_rows", _INT, 0,
                  "Rows of one transaction of the first snapshot; 0: all of it is one transaction.", low=0),
        ConfigKey("batch_rows", _INT, 5000, "Behind so many changes a transaction is committed.", low=1),
        ConfigKey("batch_ms", _INT, 50, "How long changes wait for more before they are committed.", low=0),
        ConfigKey("transaction_timeout_ms", _INT, 900_000,  # what brokers allow by default
                  "A source transaction, or the snapshot, must be written within it.", low=1000),
        ConfigKey("compression_type", _STRING, "none", "How batches of records are compressed.",
                  allowed=tuple(PRODUCER_CODECS)),
        ConfigKey("max_request_size", _INT, 1024 * 1024, "Bytes of the largest record.", low=1024),
        ConfigKey("accept_timeline", _INT, 0, "A timeline that the server may have changed to, after a fail-over.",
                  low=0),
    ],
    error=ConnectorConfigError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    name: str
    client: Mapping[str, Any]
    """Settings of all Kafka clients, by Kafka's names."""
    url: str
    publication: str
    slot: str
    topic: str = setting(SOURCE_TABLE["topic"])
    format: str = setting(SOURCE_TABLE["format"])
    schema_registry: str | None = setting(SOURCE_TABLE["schema_registry"])
    outbox_table: str | None = setting(SOURCE_TABLE["outbox_table"])
    outbox_prefix: str | None = setting(SOURCE_TABLE["outbox_prefix"])
    outbox_topic: str = setting(SOURCE_TABLE["outbox_topic"])
    snapshot_rows: int = setting(SOURCE_TABLE["snapshot_rows"])
    batch_rows: int = setting(SOURCE_TABLE["batch_rows"])
    batch_ms: int = setting(SOURCE_TABLE["batch_ms"])
    transaction_timeout_ms: int = setting(SOURCE_TABLE["transaction_timeout_ms"])
    compression_type: str = setting(SOURCE_TABLE["compression_type"])
    max_request_size: int = setting(SOURCE_TABLE["max_request_size"])
    accept_timeline: int = setting(SOURCE_TABLE["accept_timeline"])


def source_settings(given: Mapping[str, Any], client: Mapping[str, Any]) -> SourceSettings:
    """Raises ConnectorConfigError, which names the setting."""
    settings = SOURCE_TABLE.parse({**dict.fromkeys(("name", "url", "publication"), ""), **given})
    name = settings.text("name")
    if settings.optional_text("schema_registry") is not None and settings.text("format") != "rows":
        raise ConnectorConfigError(
            'schema_registry makes a source write plain rows as Avro: leave out format = "debezium"; or leave out '
            "schema_registry, and the envelopes are JSON"
        )
    return settings.bind(
        SourceSettings,
        client=client,
        name=name,
        url=settings.text("url"),
        publication=settings.text("publication"),
        slot=settings.optional_text("slot") or "oncelog_" + re.sub(r"[^a-z0-9_]", "_", name.lower())[:55],
    )


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
    schema_registry: str | None = setting(SINK_TABLE["schema_registry"])
    start: str = setting(SINK_TABLE["start"])
    unknown_fields: str = setting(SINK_TABLE["unknown_fields"])
    errors: str = setting(SINK_TABLE["errors"])
    corrupt_batches: str = setting(SINK_TABLE["corrupt_batches"])
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
