"""The settings of the exactly-once sink, checked by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncelog.client import ClientConfig, ConfigurationError
from oncelog.core.ids import TopicPartition
from oncelog.spark.client_options import (
    CLIENT_OPTIONS,
    SINK_CONTRADICTIONS,
    SINK_ONLY_VALUES,
    SINK_WITHOUT_EFFECT,
    client_config,
    refuse_contradictions,
    refuse_other_values,
    warn_of_no_effect,
)
from oncelog.spark.resume import NewCheckpoint
from oncelog.spark.source_options import OptionError, refuse_unknown

TRANSACTION_TIMEOUT_MS = 600_000
"""Ten minutes: a micro-batch must be written within it. Brokers allow 15 minutes by default."""
BATCH_ATTEMPTS = 3
MAX_REQUEST_SIZE = 1_048_576
"""Kafka's default of `max.request.size`: a larger record is refused by brokers with default settings."""
WHOLE_NUMBERS = frozenset({"transaction_timeout_ms", "batch_attempts", "max_request_size"})
ARGUMENTS = {
    name.replace("_", "."): name
    for name in (
        "bootstrap_servers",
        "transactional_id",
        "group_id",
        "transaction_timeout_ms",
        "compression_type",
        "max_request_size",
    )
}
"""What Kafka calls those of our arguments that it has too."""
COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    client: ClientConfig
    transactional_id: str
    group_id: str
    topic: str | None = None
    dead_letter_topic: str | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    batch_attempts: int = BATCH_ATTEMPTS
    compression_type: str = "none"
    max_request_size: int = MAX_REQUEST_SIZE
    on_new_checkpoint: NewCheckpoint = NewCheckpoint.REFUSE

    def __post_init__(self) -> None:
        for setting in ("transactional_id", "group_id", "topic", "dead_letter_topic"):
            value = getattr(self, setting)
            if value is not None and not isinstance(value, str):
                raise OptionError(f"{setting} must be text, not {value!r}")
        if not self.transactional_id:
            raise OptionError("transactional_id is empty: give each pipeline its own, and keep it across restarts")
        if not self.group_id:
            raise OptionError("group_id is empty: the group the input offsets are committed for")
        if self.topic is not None and not self.topic:
            raise OptionError("topic is empty: name the output topic, or leave it out and give each row a topic column")
        for setting, name in (("topic", self.topic), ("dead_letter_topic", self.dead_letter_topic)):
            if name and not is_topic_name(name):
                raise OptionError(
                    f"{setting} is {name!r}: names of topics have up to 249 letters, digits, dots, underscores and "
                    "hyphens"
                )
        if self.transaction_timeout_ms < 1000:
            raise OptionError(
                f"transaction_timeout_ms is {self.transaction_timeout_ms}: a micro-batch must be written and committed "
                "within it, so at least 1000"
            )
        if self.batch_attempts < 1:
            raise OptionError("batch_attempts must be at least 1")
        if self.dead_letter_topic is not None and self.dead_letter_topic in ("", self.topic):
            raise OptionError("dead_letter_topic must be a topic of its own, not empty and not the output topic")
        if self.max_request_size < 1024:
            raise OptionError(f"max_request_size is {self.max_request_size}; at least 1024 bytes")
        if self.compression_type not in COMPRESSION_TYPES:
            raise OptionError(f"compression_type is {self.compression_type!r}; valid: {', '.join(COMPRESSION_TYPES)}")

    @property
    def stand_in(self) -> TopicPartition | None:
        """Where the batch ids of a source without Kafka offsets are kept."""
        return None if self.topic is None else TopicPartition(self.topic, 0)


def is_topic_name(text: str) -> bool:
    return text not in (".", "..") and re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text) is not None


def sink_options(
    *,
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    group_id: str | None,
    on_new_checkpoint: str,
    kafka: Mapping[str, str] | None,
    **settings: Any,
) -> SinkOptions:
    """From the arguments of `write_stream`. `kafka` are client settings under Kafka's names."""
    for name in WHOLE_NUMBERS & settings.keys():
        settings[name] = _whole_number(name, settings[name])
    try:
        policy = NewCheckpoint(on_new_checkpoint)
    except ValueError:
        valid = ", ".join(choice.value for choice in NewCheckpoint)
        raise OptionError(f"on_new_checkpoint is {on_new_checkpoint!r}; valid: {valid}") from None
    return SinkOptions(
        client=_client(bootstrap_servers, kafka or {}),
        transactional_id=transactional_id,
        group_id=transactional_id if group_id is None else group_id,
        on_new_checkpoint=policy,
        **settings,
    )


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    raise OptionError(f"{name} must be a whole number, not {value!r}")


def _client(bootstrap_servers: str | Sequence[str], kafka: Mapping[str, str]) -> ClientConfig:
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers or ())
    if not servers or not all(isinstance(server, str) for server in servers):
        raise OptionError(
            f"bootstrap_servers is {bootstrap_servers!r}: name at least one broker, as 'host:port' or a list of those"
        )
    given = {f"kafka.{name.lower().removeprefix('kafka.')}": str(value) for name, value in kafka.items()}
    for key in given:
        if key.removeprefix("kafka.") in ARGUMENTS:
            name = key.removeprefix("kafka.")
            raise OptionError(f"{name} is not for the argument kafka: give the sink {ARGUMENTS[name]}=...")
    accepted = SINK_WITHOUT_EFFECT | SINK_CONTRADICTIONS.keys() | SINK_ONLY_VALUES.keys()
    refuse_unknown(given, CLIENT_OPTIONS, accepted, "the exactly-once sink (argument kafka)")
    joined = servers if isinstance(servers, str) else ",".join(servers)
    try:
        refuse_contradictions(given, SINK_CONTRADICTIONS)
        refuse_other_values(given, SINK_ONLY_VALUES)
        config = client_config({**given, "kafka.bootstrap.servers": joined})
    except ConfigurationError as error:
        raise OptionError(str(error)) from None
    warn_of_no_effect(given, SINK_WITHOUT_EFFECT)
    return config
