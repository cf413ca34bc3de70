"""The settings that the group coordinator obeys, in the units it works with."""

from __future__ import annotations

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import setting
from oncelog.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    min_session_timeout_ms: int = setting(BROKER_CONFIG["group.min.session.timeout.ms"])
    max_session_timeout_ms: int = setting(BROKER_CONFIG["group.max.session.timeout.ms"])
    max_size: int = setting(BROKER_CONFIG["group.max.size"])
    waiting_members_max: int = setting(BROKER_CONFIG["oncelog.group.waiting.members.max"])
    metadata_max_bytes: int = setting(BROKER_CONFIG["oncelog.group.metadata.max.bytes"])
    initial_rebalance_delay_ms: int = setting(BROKER_CONFIG["group.initial.rebalance.delay.ms"])
    """0 answers the first member of a new group at once."""
    new_member_join_timeout_ms: int = 300_000
    """How long a parked JoinGroup of a member that never had an id keeps its place; not configurable in Kafka."""
    offset_metadata_max_bytes: int = setting(BROKER_CONFIG["offset.metadata.max.bytes"])
    offsets_retention_ms: int = setting(BROKER_CONFIG["offsets.retention.minutes"], lambda minutes: minutes * 60_000)
    offsets_retention_check_interval_ms: int = setting(BROKER_CONFIG["offsets.retention.check.interval.ms"])
