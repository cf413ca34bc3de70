"""Brokers: all of them, and one with its log directories and settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from oncelog.client.admin import ConfigResource, ResourceType
from oncelog.console.page import Console, NotThere, Page, Query
from oncelog.console.pages.topics import settings_rows
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.monitoring.brokers import log_directories, quorum

logger = logging.getLogger(__name__)

DISKS_KEPT_S: Final = 60.0
"""The answer names every partition of a broker."""
QUORUM_S: Final = 10.0
DISKS_WAIT_S: Final = 1.0
DISKS_PARTITIONS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Disk:
    """A log directory of a broker."""

    broker_id: int
    path: str
    partitions: int
    stored_bytes: int
    usable_bytes: int | None
    total_bytes: int | None

    def as_row(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "partitions": self.partitions,
            "bytes": self.stored_bytes,
            "usable_bytes": self.usable_bytes,
            "total_bytes": self.total_bytes,
        }


def disks(console: Console) -> list[Disk] | None:
    """As they were within the last minute; none if brokers do not tell, or do not answer now.

    None while they are asked: with tens of thousands of partitions that takes longer than a page should.
    """
    if console.is_away:
        return []
    wait_s = None if _are_few(console) else DISKS_WAIT_S
    try:
        return console.recent.get_soon(("disks",), lambda: _disks(console), DISKS_KEPT_S, wait_s)
    except KafkaError as error:
        logger.info("log directories are not known: %s", error)
        return []


def disks_if_few(console: Console) -> list[Disk]:
    """Log directories, for pages that must not wait: none in a cluster where asking for them would take seconds."""
    return (disks(console) if _are_few(console) else None) or []


def _are_few(console: Console) -> bool:
    return sum(len(topic.partitions) for topic in console.snapshot().topics.values()) <= DISKS_PARTITIONS_MAX


def _disks(console: Console) -> list[Disk]:
    return [
        Disk(
            one.broker_id,
            one.path,
            len(one.partition_bytes),
            sum(one.partition_bytes.values()),
            one.usable_bytes if one.usable_bytes >= 0 else None,
            one.total_bytes if one.total_bytes >= 0 else None,
        )
        for one in log_directories(console.admin)
    ]


def broker_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    found = disks_if_few(console)
    data = {
        "cluster_id": snapshot.cluster.cluster_id,
        "features": dict(sorted(snapshot.cluster.features.items())),
        "rows": [
            {**one.as_row(), "bytes": _sum(disk.stored_bytes for disk in found if disk.broker_id == one.broker.node_id)}
            for one in snapshot.brokers
        ],
    }
    return Page("brokers.html", "Brokers", data)


def _sum(sizes: Iterable[int]) -> int | None:
    known = list(sizes)
    return sum(known) if known else None


def _identity(console: Console, node_id: int, settings: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Listeners and roles by its settings and by the quorum. Kafka's protocol has no field for a broker's version."""
    known = {row["name"]: row["value"] for row in settings or () if row["value"]}
    roles = [role.strip() for role in known.get("process.roles", "broker").split(",")]
    if node_id in _voters(console) and "controller" not in roles:
        roles.append("controller")
    listeners = known.get("advertised.listeners") or known.get("listeners")
    return {
        "roles": roles,
        "listeners": [one.strip() for one in listeners.split(",")] if listeners else None,
        "metadata_version": console.snapshot().cluster.features.get("metadata.version"),
    }


def _voters(console: Console) -> set[int]:
    """Nodes that are controllers; none where there is no quorum, it is away, or whoever asks may not see it."""
    if console.is_away:
        return set()
    try:
        found = console.recent.get(("quorum",), lambda: quorum(console.admin), QUORUM_S)
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return set()
    return {one.node_id for one in found.voters} if found is not None else set()


def broker(console: Console, query: Query, node_id: int) -> Page:
    found = next((one for one in console.snapshot().brokers if one.broker.node_id == node_id), None)
    if found is None:
        raise NotThere(f"There is no broker {node_id} in the cluster now.")
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    directories = disks(console)
    settings = settings_rows(console, resource)
    data: dict[str, Any] = {
        **found.as_row(),
        **_identity(console, node_id, settings),
        "directories": None
        if directories is None
        else [one.as_row() for one in directories if one.broker_id == node_id],
        "settings": settings,
        "away": console.is_away,
    }
    tables = {"directories": data["directories"] or [], "settings": data["settings"] or []}
    return Page("broker.html", f"Broker {node_id}", data, live=directories is None, tables=tables)
