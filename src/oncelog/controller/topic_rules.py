"""Kafka's rules for topics that need to know nothing of a cluster: names, and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from oncelog.core.config import ConfigError
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.topic_config import TOPIC_CONFIG

TOPIC_NAME_LENGTH_MAX: Final = 249
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def metric_name(topic: str) -> str:
    """'.' and '_' both become '_' in metric names, so Kafka refuses names that differ in these only."""
    return topic.replace(".", "_")


def is_like_others(topic: str) -> bool:
    """Whether there can be another name with the same `metric_name`."""
    return "." in topic or "_" in topic


def check_name(name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def name_problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return "'.' or '..' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def check_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Settings a topic may have: raises INVALID_CONFIG with the key and what it takes."""
    checked = {name: text for name, text in configs.items() if text is not None}
    try:
        if len(checked) < len(configs):
            absent = ", ".join(name for name in configs if name not in checked)
            raise ConfigError(f"Null value not supported for topic configs: {absent}")
        settings = TOPIC_CONFIG.parse(checked)
        low, high = settings.integer("min.compaction.lag.ms"), settings.integer("max.compaction.lag.ms")
        if low > high:
            raise ConfigError(f"min.compaction.lag.ms ({low}) must not be larger than max.compaction.lag.ms ({high}).")
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return checked


def unknown_topic() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
