"""Options with the prefix `kafka.`: settings of Kafka's clients, as far as ours takes them.

Four kinds: those with a meaning here; those that only tune Kafka's Java client, which are taken with a warning, so that
a pipeline can change its format alone; those that contradict what source and sink do; and TLS and SASL, which are not
supported yet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from oncelog.client.config import CLIENT_TABLE, ClientConfig, parse_settings, refuse_security
from oncelog.client.consumer_config import CONSUMER_TABLE
from oncelog.client.errors import ConfigurationError
from oncelog.client.fetcher import RANGE_FETCH_BYTES

logger = logging.getLogger(__name__)

PREFIX = "kafka."
_SET_ELSEWHERE = frozenset({"bootstrap.servers", "allow.auto.create.topics"})
CLIENT_OPTIONS: tuple[str, ...] = tuple(PREFIX + key.name for key in CLIENT_TABLE if key.name not in _SET_ELSEWHERE)
"""`kafka.request.timeout.ms` and the like, handed to the client."""
FETCH_OPTIONS: tuple[str, ...] = ("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes")

_OF_ANY_CLIENT = {
    "client.dns.lookup",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
}
SOURCE_WITHOUT_EFFECT = frozenset(
    PREFIX + name
    for name in _OF_ANY_CLIENT
    | {
        "check.crcs",
        "client.rack",
        "exclude.internal.topics",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
SINK_WITHOUT_EFFECT = frozenset(
    PREFIX + name
    for name in _OF_ANY_CLIENT
    | {
        "batch.size",
        "buffer.memory",
        "delivery.timeout.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "metadata.max.idle.ms",
        "retries",
    }
)
_REASONS = {"kafka.client.rack": "records are read from the leader of their partition"}
_REASON = "it tunes Kafka's Java client"

SOURCE_CONTRADICTIONS = {
    "kafka.auto.offset.reset": "startingOffsets says where to start, failOnDataLoss what to do when that is gone",
    "kafka.enable.auto.commit": "positions are kept in the checkpoint, and committed by the exactly-once sink",
    "kafka.interceptor.classes": "no code of Kafka's Java client runs here",
    "kafka.key.deserializer": "keys are read as bytes: use the functions of DataFrames",
    "kafka.value.deserializer": "values are read as bytes: use the functions of DataFrames",
}
SINK_CONTRADICTIONS = {
    "kafka.interceptor.classes": "no code of Kafka's Java client runs here",
    "kafka.key.serializer": "keys are written as bytes: use the functions of DataFrames",
    "kafka.partitioner.class": "rows choose their partition with a column partition, else by key",
    "kafka.value.serializer": "values are written as bytes: use the functions of DataFrames",
}
SINK_ONLY_VALUES = {"kafka.acks": ("all", "-1"), "kafka.enable.idempotence": ("true",)}
"""What a transaction needs anyway."""


def is_security(option: str) -> bool:
    return option.startswith((PREFIX + "security.", PREFIX + "sasl.", PREFIX + "ssl."))


def client_config(options: Mapping[str, str]) -> ClientConfig:
    """The client's settings from lower-case options. Raises ConfigurationError."""
    refuse_security({key.removeprefix(PREFIX): value for key, value in options.items() if is_security(key)})
    settings = {key.removeprefix(PREFIX): options[key] for key in CLIENT_OPTIONS if key in options}
    settings["bootstrap.servers"] = options.get("kafka.bootstrap.servers", "")
    return ClientConfig.parse({**settings, "allow.auto.create.topics": False})


def fetch_sizes(options: Mapping[str, str]) -> tuple[int, int]:
    """The largest answer, and the largest share of one partition in it. Raises ConfigurationError."""
    names = [key.removeprefix(PREFIX) for key in FETCH_OPTIONS]
    given = {name: options[PREFIX + name] for name in names if PREFIX + name in options}
    settings = parse_settings(CONSUMER_TABLE, given)
    whole, share = (settings.integer(name) if name in given else RANGE_FETCH_BYTES for name in names)
    return whole, share


def refuse_contradictions(options: Mapping[str, str], contradictions: Mapping[str, str]) -> None:
    for key in options:
        if key in contradictions:
            raise ConfigurationError(f"{key} has no place here: {contradictions[key]}")


def refuse_other_values(options: Mapping[str, str], only: Mapping[str, tuple[str, ...]]) -> None:
    for key, valid in only.items():
        if key in options and options[key].strip().lower() not in valid:
            raise ConfigurationError(f"{key} is {options[key]!r}: a transaction needs {valid[0]}")


def warn_of_no_effect(options: Mapping[str, str], without_effect: Set[str]) -> None:
    for key in sorted(options.keys() & without_effect):
        logger.warning("option %s has no effect here: %s", key, _REASONS.get(key, _REASON))
