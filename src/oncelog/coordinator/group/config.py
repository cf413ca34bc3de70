"""The settings that the group coordinator obeys, in the units it works with."""

from __future__ import annotations

from dataclasses import dataclass

INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Kafka's names and defaults, times in milliseconds."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`"""
    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`"""
    max_size: int = INT_MAX
    """`group.max.size`"""
    initial_rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`: 0 answers the first member of a new group at once."""
    new_member_join_timeout_ms: int = 300_000
    """How long a parked JoinGroup of a member that never had an id keeps its place; not configurable in Kafka."""
    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`"""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """`offsets.retention.minutes`"""
    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`"""
