"""The options of `format("oncelog")`: the names and meanings of Spark's Kafka source, checked by name.

Three deviations, for the sake of exactly-once: `kafka.isolation.level` is read_committed unless told otherwise;
`startingOffsets` may be `committed`, which continues where the group of `kafka.group.id` stands; and `snapshot` reads a
changelog topic as the first rows of a stream.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.client import ClientConfig, ConfigurationError
from oncelog.core.ids import TopicPartition
from oncelog.spark.client_options import (
    CLIENT_OPTIONS,
    FETCH_OPTIONS,
    SOURCE_CONTRADICTIONS,
    SOURCE_WITHOUT_EFFECT,
    client_config,
    fetch_sizes,
    is_security,
    refuse_contradictions,
    warn_of_no_effect,
)
from oncelog.spark.offsets import EARLIEST, LATEST, Offsets, parse_user_offsets

VALID_OPTIONS: tuple[str, ...] = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "snapshot",
    "kafka.isolation.level",
    "kafka.group.id",
)

ACCEPTED_WITHOUT_EFFECT = frozenset(
    {"groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "path"}
)
"""Tuning of the Java consumer that our reader has no use for: taken so that a pipeline can change its format alone."""

BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "snapshot")


class OptionError(ValueError):
    """An option that is unknown, malformed or contradicts another; the text names it and what is valid."""


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


@dataclass(frozen=True, slots=True)
class SourceOptions:
    client: ClientConfig
    subscription: Subscription
    starting: Position
    ending: Position
    timestamp_strategy: str
    fail_on_data_loss: bool
    read_committed: bool
    include_headers: bool
    group_id: str | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    snapshot: bool
    fetch_bytes_max: int
    partition_fetch_bytes_max: int


def parse_source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check every option and raise OptionError for the first that is wrong."""
    options = {key.lower(): str(value) for key, value in given.items()}
    _refuse_unknown(given)
    _refuse_misplaced(options, streaming)
    client = _client(options)
    fetch_bytes_max, partition_fetch_bytes_max = _fetch_sizes(options)
    warn_of_no_effect(options, SOURCE_WITHOUT_EFFECT)
    max_offsets = _positive(options, "maxOffsetsPerTrigger")
    min_offsets = _positive(options, "minOffsetsPerTrigger")
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(f"option minOffsetsPerTrigger ({min_offsets}) is above maxOffsetsPerTrigger ({max_offsets})")
    group_id = options.get("kafka.group.id")
    starting = _starting(options, streaming)
    if starting.committed and not group_id:
        raise OptionError("option startingOffsets is 'committed', which needs kafka.group.id: the group to continue")
    return SourceOptions(
        client=client,
        subscription=_subscription(options),
        starting=starting,
        ending=_ending(options),
        timestamp_strategy=_choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        read_committed=_choice(
            options, "kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed"
        )
        == "read_committed",
        include_headers=_boolean(options, "includeHeaders", default=False),
        group_id=group_id,
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=_duration_ms(options.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        snapshot=_boolean(options, "snapshot", default=False),
        fetch_bytes_max=fetch_bytes_max,
        partition_fetch_bytes_max=partition_fetch_bytes_max,
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """The one option the schema depends on."""
    return _boolean({key.lower(): str(value) for key, value in given.items()}, "includeHeaders", default=False)


def _client(options: Mapping[str, str]) -> ClientConfig:
    if not options.get("kafka.bootstrap.servers"):
        raise OptionError("option kafka.bootstrap.servers is missing: name at least one broker as host:port")
    try:
        refuse_contradictions(options, SOURCE_CONTRADICTIONS)
        return client_config(options)
    except ConfigurationError as error:
        raise OptionError(str(error)) from None


def _fetch_sizes(options: Mapping[str, str]) -> tuple[int, int]:
    try:
        return fetch_sizes(options)
    except ConfigurationError as error:
        raise OptionError(str(error)) from None


def refuse_unknown(given: Mapping[str, str], valid: tuple[str, ...], accepted: frozenset[str], what: str) -> None:
    """Raise for a name that is none of `valid`, with the nearest valid one and the whole list."""
    known = {name.lower() for name in valid} | accepted
    for name in given:
        if name.lower() not in known and not is_security(name.lower()):
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75)
            hint = next((f" Did you mean {v}?" for v in valid if near and v.lower() == near[0]), "")
            raise OptionError(f"unknown option {name} for {what}.{hint} Valid options: {', '.join(sorted(valid))}")


def _refuse_unknown(given: Mapping[str, str]) -> None:
    valid = (*VALID_OPTIONS, *CLIENT_OPTIONS, *FETCH_OPTIONS)
    accepted = ACCEPTED_WITHOUT_EFFECT | SOURCE_WITHOUT_EFFECT | SOURCE_CONTRADICTIONS.keys()
    refuse_unknown(given, valid, accepted, 'format("oncelog")')


def _refuse_misplaced(options: Mapping[str, str], streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name.lower() in options:
            kind, other = ("streaming", "a batch read") if streaming else ("batch", "a streaming read")
            raise OptionError(f"option {name} makes no sense in a {kind} read; it belongs to {other}")


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(given) != 1:
        said = "none of them" if not given else " and ".join(given)
        raise OptionError(
            f"exactly one of the options subscribe, subscribePattern and assign must be given, not {said}"
        )
    text = options[given[0].lower()]
    if given[0] == "subscribe":
        return Subscription(topics=tuple(_names(text, "subscribe")))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option subscribePattern: {text!r} is not a regular expression: {error}") from None
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
        partitions = tuple(TopicPartition(topic, int(p)) for topic, numbers in value.items() for p in numbers)
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"option assign: expected partitions per topic like {example}, not {text!r}") from None
    if not partitions:
        raise OptionError(f"option assign names no partition; expected something like {example}")
    return partitions


def _starting(options: Mapping[str, str], streaming: bool) -> Position:
    if (position := _timed(options, "startingTimestamp", "startingOffsetsByTimestamp")) is not None:
        return position
    text = options.get("startingoffsets", "latest" if streaming else "earliest").strip()
    if text.lower() == "committed":
        return Position(committed=True)
    if text.lower() == "earliest" or (text.lower() == "latest" and streaming):
        return Position(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    valid = "earliest, latest, committed" if streaming else "earliest, committed"
    special = {"latest": LATEST, "earliest": EARLIEST} if streaming else {"earliest": EARLIEST}
    return Position(offsets=_offsets_json(text, "startingOffsets", valid, special))


def _ending(options: Mapping[str, str]) -> Position:
    if (position := _timed(options, "endingTimestamp", "endingOffsetsByTimestamp")) is not None:
        return position
    text = options.get("endingoffsets", "latest").strip()
    if text.lower() == "latest":
        return Position(everywhere=LATEST)
    return Position(offsets=_offsets_json(text, "endingOffsets", "latest", {"latest": LATEST}))


def _timed(options: Mapping[str, str], one: str, each: str) -> Position | None:
    if one.lower() in options:
        return Position(timestamp_ms=_number(options[one.lower()], one))
    if each.lower() in options:
        try:
            return Position(timestamps=parse_user_offsets(options[each.lower()], each, special={}))
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


def _number(text: str, option: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"option {option} must be a whole number, not {text!r}") from None
    if number < 0:
        raise OptionError(f"option {option} must not be negative, but is {number}")
    return number


def _positive(options: Mapping[str, str], option: str) -> int | None:
    text = options.get(option.lower())
    if text is None:
        return None
    number = _number(text, option)
    if number == 0:
        raise OptionError(f"option {option} must be at least 1")
    return number


def _boolean(options: Mapping[str, str], option: str, *, default: bool) -> bool:
    return _choice(options, option, ("true", "false"), str(default).lower()) == "true"


def _choice(options: Mapping[str, str], option: str, valid: tuple[str, ...], default: str) -> str:
    value = options.get(option.lower(), default).strip().lower()
    if value not in valid:
        raise OptionError(f"option {option} is {value!r}; valid: {', '.join(valid)}")
    return value


_UNITS_MS: dict[str, int] = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str, option: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", text.lower())
    if match is None:
        raise OptionError(f"option {option}: {text!r} is not a duration like 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]
