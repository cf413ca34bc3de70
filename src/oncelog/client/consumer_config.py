"""The settings of a consumer: Kafka's names and defaults, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oncelog.client.assignors import ASSIGNORS
from oncelog.client.config import CLIENT_TABLE, ClientConfig, parse_settings
from oncelog.client.errors import SKIP_CORRUPT_BATCHES, ConfigurationError
from oncelog.client.fetch import FETCH_KEYS, RACK, FetchSettings
from oncelog.client.visibility import IsolationLevel
from oncelog.core.config import INT_MAX, ConfigKey, ConfigType, Settings, refused, setting
from oncelog.core.dataclass import dataclass

_INT, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
ISOLATION: Final = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
RESET: Final = ("latest", "earliest", "none")

CONSUMER_TABLE: Final = CLIENT_TABLE.extended(
    "consumer",
    [
        ConfigKey("group.id", _STRING, None, "The group whose members share the partitions."),
        ConfigKey("group.instance.id", _STRING, None, "A name that survives restarts: no rebalance for a short one."),
        ConfigKey("auto.offset.reset", _STRING, "latest", "Where to start without a committed offset.", allowed=RESET),
        ConfigKey("enable.auto.commit", _BOOLEAN, True, "Whether positions are committed automatically."),
        ConfigKey("auto.commit.interval.ms", _INT, 5_000, "How often positions are committed automatically.", low=0),
        ConfigKey("isolation.level", _STRING, "read_uncommitted", "Which records are read.", allowed=tuple(ISOLATION)),
        ConfigKey("session.timeout.ms", _INT, 45_000, "A member without a heartbeat for this long is removed.", low=1),
        ConfigKey("heartbeat.interval.ms", _INT, 3_000, "How often heartbeats are sent.", low=1),
        ConfigKey("max.poll.interval.ms", _INT, 300_000, "A member without a poll for this long leaves.", low=1),
        ConfigKey("max.poll.records", _INT, 500, "The most records that one poll returns.", low=1),
        *FETCH_KEYS,
        RACK,
        ConfigKey("check.crcs", _BOOLEAN, True, "Whether checksums of batches are verified."),
        ConfigKey(SKIP_CORRUPT_BATCHES, _BOOLEAN, False,
                  "Whether records that cannot be read are left out with a warning. Otherwise they raise an error, "
                  "after everything before them was returned."),
        ConfigKey("exclude.internal.topics", _BOOLEAN, True, "Whether patterns leave out Kafka's own topics."),
        ConfigKey("partition.assignment.strategy", ConfigType.LIST, ("range", "cooperative-sticky"),
                  "How partitions are shared, in order of preference.", allowed=tuple(ASSIGNORS)),
    ],
    others=[
        *refused("give the consumer a function as its argument", "key.deserializer", "value.deserializer"),
        *refused("groups have the classic protocol here: leave it out", "group.protocol", "group.remote.assignor"),
    ],
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    client: ClientConfig
    group_id: str | None = setting(CONSUMER_TABLE["group.id"])
    group_instance_id: str | None = setting(CONSUMER_TABLE["group.instance.id"])
    offset_reset: str = setting(CONSUMER_TABLE["auto.offset.reset"])
    auto_commit: bool = setting(CONSUMER_TABLE["enable.auto.commit"])
    auto_commit_interval_ms: int = setting(CONSUMER_TABLE["auto.commit.interval.ms"])
    session_timeout_ms: int = setting(CONSUMER_TABLE["session.timeout.ms"])
    heartbeat_interval_ms: int = setting(CONSUMER_TABLE["heartbeat.interval.ms"])
    max_poll_interval_ms: int = setting(CONSUMER_TABLE["max.poll.interval.ms"])
    max_poll_records: int = setting(CONSUMER_TABLE["max.poll.records"])
    fetch: FetchSettings
    check_crcs: bool = setting(CONSUMER_TABLE["check.crcs"])
    skip_corrupt_batches: bool = setting(CONSUMER_TABLE[SKIP_CORRUPT_BATCHES])
    exclude_internal_topics: bool = setting(CONSUMER_TABLE["exclude.internal.topics"])
    strategies: tuple[str, ...] = setting(CONSUMER_TABLE["partition.assignment.strategy"])

    @property
    def isolation(self) -> IsolationLevel:
        return self.fetch.isolation

    @classmethod
    def parse(cls, properties: Mapping[str, Any] | ConsumerConfig) -> ConsumerConfig:
        """Raises ConfigurationError that names the settings at fault. What is parsed already is left as it is."""
        if isinstance(properties, ConsumerConfig):
            return properties
        settings = parse_settings(CONSUMER_TABLE, properties)
        group_id = settings.optional_text("group.id")
        _check_group(settings, group_id)
        return settings.bind(
            cls,
            client=ClientConfig.from_settings(settings),
            auto_commit=settings.boolean("enable.auto.commit") and group_id is not None,
            fetch=settings.bind(FetchSettings, isolation=ISOLATION[settings.text("isolation.level")]),
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
