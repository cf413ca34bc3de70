"""The options of `format("oncelog")`: the names and meanings of Spark's Kafka source, checked by name.

Three deviations, for the sake of exactly-once: `kafka.isolation.level` is read_committed unless told otherwise;
`startingOffsets` may be `committed`, which continues where the group of `kafka.group.id` stands; and `snapshot` reads a
changelog topic as the first rows of a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.client import ClientConfig, ConfigurationError
from oncelog.client.settings import CONSUMER_TABLE, RANGE_FETCH_BYTES, TUNES_JAVA, parse_settings
from oncelog.core.config import ConfigKey, ConfigType, Settings, refused, setting, without_effect
from oncelog.core.ids import TopicPartition
from oncelog.core.time_text import duration_ms
from oncelog.spark.offsets import EARLIEST, LATEST, Offsets, parse_user_offsets

PREFIX = "kafka."
AS_BYTES = "use the functions of DataFrames"
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "snapshot")

_STRING, _LONG, _INT, _BOOLEAN = ConfigType.STRING, ConfigType.LONG, ConfigType.INT, ConfigType.BOOLEAN


class OptionError(ConfigurationError):
    """An option that is unknown, malformed or contradicts another; the text names it and what is valid."""


def _duration_problem(text: str) -> str | None:
    """Spark's own source for Kafka takes a plain number for milliseconds, our commands for seconds: it needs a unit."""
    problem = "must be a duration like 30s, 15m or 1h"
    if not text.strip()[-1:].isalpha():
        return problem
    try:
        duration_ms(text)
    except ValueError:
        return problem
    return None


def _pattern_problem(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return f"must be a regular expression: {error}"
    return None


SOURCE_TABLE = CONSUMER_TABLE.extended(
    'format("oncelog")',
    [
        ConfigKey("subscribe", _STRING, None, "Topics by name, separated by commas."),
        ConfigKey("subscribePattern", _STRING, None, "Topics by a pattern.", check=_pattern_problem),
        ConfigKey("assign", _STRING, None, "Single partitions, as JSON."),
        ConfigKey("startingOffsets", _STRING, None, "Where a query starts."),
        ConfigKey("startingTimestamp", _LONG, None, "The same by time in milliseconds.", low=0),
        ConfigKey("startingOffsetsByTimestamp", _STRING, None, "The same by time per partition, as JSON."),
        ConfigKey("startingOffsetsByTimestampStrategy", _STRING, "error", "What to do when no record is that young.",
                  allowed=("error", "latest")),
        ConfigKey("endingOffsets", _STRING, "latest", "Where a batch ends."),
        ConfigKey("endingTimestamp", _LONG, None, "The same by time in milliseconds.", low=0),
        ConfigKey("endingOffsetsByTimestamp", _STRING, None, "The same by time per partition, as JSON."),
        ConfigKey("failOnDataLoss", _BOOLEAN, True, "Whether to stop when offsets are gone that were not read."),
        ConfigKey("maxOffsetsPerTrigger", _LONG, None, "Input of one micro-batch.", low=1),
        ConfigKey("minOffsetsPerTrigger", _LONG, None, "Wait for so many.", low=1),
        ConfigKey("maxTriggerDelay", _STRING, "15m", "But not longer.", check=_duration_problem),
        ConfigKey("minPartitions", _INT, None, "Cut large partitions into so many tasks.", low=1),
        ConfigKey("maxRecordsPerPartition", _LONG, None, "The most that one task reads.", low=1),
        ConfigKey("includeHeaders", _BOOLEAN, False, "Whether there is a column headers."),
        ConfigKey("snapshot", _BOOLEAN, False, "Whether a stream begins with the latest value of each key."),
    ],
    others=[
        *without_effect(TUNES_JAVA, "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
                        "fetchOffset.retryIntervalMs", "kafka.auto.commit.interval.ms", "kafka.check.crcs",
                        "kafka.exclude.internal.topics", "kafka.fetch.max.wait.ms", "kafka.fetch.min.bytes",
                        "kafka.group.instance.id", "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms",
                        "kafka.max.poll.records", "kafka.partition.assignment.strategy", "kafka.session.timeout.ms"),
        *without_effect("records are read from the leader of their partition", "kafka.client.rack"),
        *without_effect("topics are named by subscribe, subscribePattern or assign", "path"),
        *refused("startingOffsets says where to start, failOnDataLoss what to do when that is gone",
                 "kafka.auto.offset.reset"),
        *refused("positions are kept in the checkpoint, and committed by the exactly-once sink",
                 "kafka.enable.auto.commit"),
        *refused(f"keys are read as bytes: {AS_BYTES}", "kafka.key.deserializer"),
        *refused(f"values are read as bytes: {AS_BYTES}", "kafka.value.deserializer"),
        *refused("reading creates no topics", "kafka.allow.auto.create.topics"),
    ],
    prefix=PREFIX,
    changes={
        "kafka.isolation.level": {"default": "read_committed"},
        "kafka.fetch.max.bytes": {"default": RANGE_FETCH_BYTES},
        "kafka.max.partition.fetch.bytes": {"default": RANGE_FETCH_BYTES},
    },
    # The source's earlier name of it.
    aliases={"kafka.transaction.version.max": ("kafka.oncelog.transaction.version.max", 1)},
    error=OptionError,
)  # fmt: skip
_NAMES = {name.lower(): name for name in SOURCE_TABLE.names}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one of: topics by name, topics by pattern, single partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or end: everywhere alike, at a time, or per partition (offsets or timestamps)."""

    everywhere: int | None = None
    committed: bool = False
    timestamp_ms: int | None = None
    offsets: Offsets | None = None
    timestamps: Offsets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    client: ClientConfig
    subscription: Subscription
    starting: Position
    ending: Position
    timestamp_strategy: str = setting(SOURCE_TABLE["startingOffsetsByTimestampStrategy"])
    fail_on_data_loss: bool = setting(SOURCE_TABLE["failOnDataLoss"])
    read_committed: bool = setting(SOURCE_TABLE["kafka.isolation.level"], "read_committed".__eq__)
    include_headers: bool = setting(SOURCE_TABLE["includeHeaders"])
    skip_corrupt_batches: bool = setting(SOURCE_TABLE["kafka.oncelog.skip.corrupt.batches"])
    group_id: str | None = setting(SOURCE_TABLE["kafka.group.id"])
    max_offsets_per_trigger: int | None = setting(SOURCE_TABLE["maxOffsetsPerTrigger"])
    min_offsets_per_trigger: int | None = setting(SOURCE_TABLE["minOffsetsPerTrigger"])
    max_trigger_delay_ms: int = setting(SOURCE_TABLE["maxTriggerDelay"], duration_ms)
    min_partitions: int | None = setting(SOURCE_TABLE["minPartitions"])
    max_records_per_partition: int | None = setting(SOURCE_TABLE["maxRecordsPerPartition"])
    snapshot: bool = setting(SOURCE_TABLE["snapshot"])
    fetch_bytes_max: int = setting(SOURCE_TABLE["kafka.fetch.max.bytes"])
    partition_fetch_bytes_max: int = setting(SOURCE_TABLE["kafka.max.partition.fetch.bytes"])

    def __post_init__(self) -> None:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(f"option minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
        if self.starting.committed and not self.group_id:
            raise OptionError(
                "option startingOffsets is 'committed', which needs kafka.group.id: the group to continue"
            )


def parse_source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check every option and raise OptionError for the first that is wrong."""
    settings = parse_settings(SOURCE_TABLE, _named(given), PREFIX)
    _refuse_misplaced(settings, streaming)
    return settings.bind(
        SourceOptions,
        client=_client(settings),
        subscription=_subscription(settings),
        starting=_starting(settings, streaming),
        ending=_ending(settings),
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """The one option the schema depends on."""
    name = "includeHeaders"
    return SOURCE_TABLE.parse({name: _named(given).get(name)}).boolean(name)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Spark's options are the same in capitals, and so are the words that some of them take."""
    options = {_NAMES.get(name.lower(), name): str(value) for name, value in given.items()}
    words = {name for name in options if name in SOURCE_TABLE and SOURCE_TABLE[name].allowed}
    return {name: value.lower() if name in words else value for name, value in options.items()}


def _client(settings: Settings) -> ClientConfig:
    servers = settings.text("kafka.bootstrap.servers")
    if not servers:
        raise OptionError("option kafka.bootstrap.servers is missing: name at least one broker as host:port")
    return client_config(settings, PREFIX, servers)


def client_config(settings: Settings, prefix: str, servers: str) -> ClientConfig:
    try:
        return settings.bind(ClientConfig, prefix, bootstrap_servers=servers, allow_auto_create_topics=False)
    except ConfigurationError as error:
        raise OptionError(str(error)) from None


def _refuse_misplaced(settings: Settings, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in settings.values:
            kind, other = ("streaming", "a batch read") if streaming else ("batch", "a streaming read")
            raise OptionError(f"option {name} makes no sense in a {kind} read; it belongs to {other}")


def _subscription(settings: Settings) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in settings.values]
    if len(given) != 1:
        said = "none of them" if not given else " and ".join(given)
        raise OptionError(
            f"exactly one of the options subscribe, subscribePattern and assign must be given, not {said}"
        )
    text = settings.text(given[0])
    if given[0] == "subscribe":
        return Subscription(topics=tuple(_names(text, "subscribe")))
    if given[0] == "subscribePattern":
        return Subscription(pattern=text)
    return Subscription(partitions=_assigned(text))


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionError(f"option {option} names no topic")
    return names


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = '{"orders": [0, 1]}'
    try:
        value = json.loads(text)
        partitions = tuple(TopicPartition(topic, p) for topic, numbers in value.items() for p in numbers)
    except (ValueError, TypeError, AttributeError):
        partitions = None
    if partitions is None or any(type(p.partition) is not int or p.partition < 0 for p in partitions):
        raise OptionError(f"option assign: expected partitions per topic like {example}, not {text!r}")
    if not partitions:
        raise OptionError(f"option assign names no partition; expected something like {example}")
    return partitions


def _starting(settings: Settings, streaming: bool) -> Position:
    if (position := _timed(settings, "startingTimestamp", "startingOffsetsByTimestamp")) is not None:
        return position
    text = settings.optional_text("startingOffsets") or ("latest" if streaming else "earliest")
    if text.lower() == "committed":
        return Position(committed=True)
    if text.lower() == "earliest" or (text.lower() == "latest" and streaming):
        return Position(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    valid = "earliest, latest, committed" if streaming else "earliest, committed"
    special = {"latest": LATEST, "earliest": EARLIEST} if streaming else {"earliest": EARLIEST}
    return Position(offsets=_offsets_json(text, "startingOffsets", valid, special))


def _ending(settings: Settings) -> Position:
    if (position := _timed(settings, "endingTimestamp", "endingOffsetsByTimestamp")) is not None:
        return position
    text = settings.text("endingOffsets")
    if text.lower() == "latest":
        return Position(everywhere=LATEST)
    return Position(offsets=_offsets_json(text, "endingOffsets", "latest", {"latest": LATEST}))


def _timed(settings: Settings, one: str, each: str) -> Position | None:
    if one in settings.values:
        return Position(timestamp_ms=settings.integer(one))
    if each in settings.values:
        try:
            return Position(timestamps=parse_user_offsets(settings.text(each), each, special={}))
        except ValueError as error:
            raise OptionError(str(error)) from None
    return None


def _offsets_json(text: str, option: str, valid: str, special: Mapping[str, int]) -> Offsets:
    if not text.startswith("{"):
        raise OptionError(
            f"option {option}: {text!r} is not valid here; use {valid} or JSON with offsets per partition"
        )
    try:
        return parse_user_offsets(text, option, special=special)
    except ValueError as error:
        raise OptionError(str(error)) from None
