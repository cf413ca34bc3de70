"""Brokers: all of them, and the settings of one."""

from __future__ import annotations

from oncelog.client.admin import ConfigResource, ResourceType
from oncelog.console.page import Console, NotThere, Page, Query
from oncelog.console.pages.topics import settings_rows


def broker_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    data = {
        "cluster_id": snapshot.cluster.cluster_id,
        "features": dict(sorted(snapshot.cluster.features.items())),
        "rows": [one.as_row() for one in snapshot.brokers],
    }
    return Page("brokers.html", "Brokers", data)


def broker(console: Console, query: Query, node_id: int) -> Page:
    found = next((one for one in console.snapshot().brokers if one.broker.node_id == node_id), None)
    if found is None:
        raise NotThere(f"There is no broker {node_id} in the cluster now.")
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    data = {**found.as_row(), "settings": settings_rows(console, resource)}
    return Page("broker.html", f"Broker {node_id}", data, live=False)
