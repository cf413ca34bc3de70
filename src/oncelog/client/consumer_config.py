"""The settings of a consumer: Kafka's names and defaults, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oncelog.client.assignors import ASSIGNORS
from oncelog.client.config import COMMON_KEYS, INT_MAX, ClientConfig, parse_settings
from oncelog.client.errors import ConfigurationError
from oncelog.client.fetch import FetchSettings
from oncelog.client.visibility import IsolationLevel
from oncelog.core.config import ConfigKey, ConfigTable, ConfigType, Settings

_INT, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
ISOLATION: Final = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
RESET: Final = ("latest", "earliest", "none")

CONSUMER_TABLE: Final = ConfigTable(
    "consumer",
    [
        *COMMON_KEYS,
        ConfigKey("group.id", _STRING, None, "The group whose members share the partitions."),
        ConfigKey("group.instance.id", _STRING, None, "A name that survives restarts: no rebalance for a short one."),
        ConfigKey("auto.offset.reset", _STRING, "latest", "Where to start without a committed offset.", allowed=RESET),
        ConfigKey("enable.auto.commit", _BOOLEAN, True, "Whether positions are committed from time to time."),
        ConfigKey("auto.commit.interval.ms", _INT, 5_000, "How often they are.", low=0),
        ConfigKey("isolation.level", _STRING, "read_uncommitted", "What is read.", allowed=tuple(ISOLATION)),
        ConfigKey("session.timeout.ms", _INT, 45_000, "Without a heartbeat for this long a member is out.", low=1),
        ConfigKey("heartbeat.interval.ms", _INT, 3_000, "How often heartbeats are sent.", low=1),
        ConfigKey("max.poll.interval.ms", _INT, 300_000, "Without a poll for this long a member leaves.", low=1),
        ConfigKey("max.poll.records", _INT, 500, "Records of one poll at most.", low=1),
        ConfigKey("fetch.min.bytes", _INT, 1, "Bytes a broker waits for.", low=0),
        ConfigKey("fetch.max.wait.ms", _INT, 500, "How long it waits for them.", low=0),
        ConfigKey("fetch.max.bytes", _INT, 52_428_800, "Bytes of one answer.", low=1),
        ConfigKey("max.partition.fetch.bytes", _INT, 1_048_576, "Bytes of one partition in it.", low=1),
        ConfigKey("check.crcs", _BOOLEAN, True, "Whether checksums of batches are verified."),
        ConfigKey("exclude.internal.topics", _BOOLEAN, True, "Whether patterns leave out Kafka's own topics."),
        ConfigKey(
            "partition.assignment.strategy",
            ConfigType.LIST,
            ("range", "cooperative-sticky"),
            "How partitions are shared, in order of preference.",
            allowed=tuple(ASSIGNORS),
        ),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    client: ClientConfig
    group_id: str | None
    group_instance_id: str | None
    offset_reset: str
    auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    fetch: FetchSettings
    check_crcs: bool
    exclude_internal_topics: bool
    strategies: tuple[str, ...]

    @property
    def isolation(self) -> IsolationLevel:
        return self.fetch.isolation

    @classmethod
    def parse(cls, properties: Mapping[str, Any]) -> ConsumerConfig:
        """Raises ConfigurationError that names the settings at fault."""
        settings = parse_settings(CONSUMER_TABLE, properties)
        group_id = settings.optional_text("group.id")
        _check_group(settings, group_id)
        return cls(
            client=ClientConfig.from_settings(settings),
            group_id=group_id,
            group_instance_id=settings.optional_text("group.instance.id"),
            offset_reset=settings.text("auto.offset.reset"),
            auto_commit=settings.boolean("enable.auto.commit") and group_id is not None,
            auto_commit_interval_ms=settings.integer("auto.commit.interval.ms"),
            session_timeout_ms=settings.integer("session.timeout.ms"),
            heartbeat_interval_ms=settings.integer("heartbeat.interval.ms"),
            max_poll_interval_ms=settings.integer("max.poll.interval.ms"),
            max_poll_records=settings.integer("max.poll.records"),
            fetch=FetchSettings(
                isolation=ISOLATION[settings.text("isolation.level")],
                max_wait_ms=settings.integer("fetch.max.wait.ms"),
                min_bytes=settings.integer("fetch.min.bytes"),
                max_bytes=settings.integer("fetch.max.bytes"),
                partition_max_bytes=settings.integer("max.partition.fetch.bytes"),
            ),
            check_crcs=settings.boolean("check.crcs"),
            exclude_internal_topics=settings.boolean("exclude.internal.topics"),
            strategies=settings.words("partition.assignment.strategy"),
        )


def _check_group(settings: Settings, group_id: str | None) -> None:
    if group_id is None:
        for name in ("enable.auto.commit", "group.instance.id"):
            if settings.values.get(name):
                raise ConfigurationError(f"{name} needs a group.id")
    if group_id == "":
        raise ConfigurationError("group.id is empty: leave it out, or name the group")
    heartbeat, session = settings.integer("heartbeat.interval.ms"), settings.integer("session.timeout.ms")
    if heartbeat >= session:
        raise ConfigurationError(f"heartbeat.interval.ms={heartbeat} is not less than session.timeout.ms={session}")
    if settings.integer("request.timeout.ms") + settings.integer("fetch.max.wait.ms") > INT_MAX:
        raise ConfigurationError("fetch.max.wait.ms is too large")
    if not settings.words("partition.assignment.strategy"):
        raise ConfigurationError("partition.assignment.strategy is empty")
