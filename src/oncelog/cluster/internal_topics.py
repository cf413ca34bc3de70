"""The settings of the coordinators' topics: they are compacted, and their records do not expire by age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.core.config import Settings
from oncelog.core.ids import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from oncelog.core.topic_config import TOPIC_CONFIG

_SEGMENT_BYTES: Final = "segment.bytes"
_INTERNAL: Final = f"internal.{_SEGMENT_BYTES}"


def internal_topic_configs(name: str, settings: Settings) -> dict[str, str]:
    """What an internal topic is created with; nothing for any other."""
    if name not in INTERNAL_TOPICS:
        return {}
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer" if name == GROUP_METADATA_TOPIC else "uncompressed",
        _INTERNAL: str(settings.integer(f"{_prefix(name)}.segment.bytes")),
    }
    if name == TRANSACTION_STATE_TOPIC:
        configs["unclean.leader.election.enable"] = "false"
    return configs


def internal_partition_count(name: str, settings: Settings) -> int:
    return settings.integer(f"{_prefix(name)}.num.partitions")


def _prefix(name: str) -> str:
    return "offsets.topic" if name == GROUP_METADATA_TOPIC else "transaction.state.log"


def as_for_controllers(configs: Mapping[str, str]) -> dict[str, str]:
    """The settings, with Kafka's name for the size of segments unless the size is below the limit of that setting."""
    wanted = dict(configs)
    size = wanted.get(_INTERNAL)
    if size is not None and int(size) >= int(TOPIC_CONFIG[_SEGMENT_BYTES].low or 0):
        wanted[_SEGMENT_BYTES] = wanted.pop(_INTERNAL)
    return wanted
