"""Connectors as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from oncelog.connect.progress import Status

_COUNTERS = {
    "records": "Records written and committed.",
    "commits": "Transactions committed.",
    "dead_letters": "Records that went to the dead letters.",
    "restarts": "Starts after temporary errors.",
}


class ConnectMetrics(Collector):
    def __init__(self, statuses: Callable[[], list[Status]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        rows = [status.as_row() for status in self._statuses()]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"oncelog_connect_{name}", text, labels=["connector"])
            for row in rows:
                counter.add_metric([row["connector"]], row[name])
            yield counter
        lag = GaugeMetricFamily(
            "oncelog_connect_lag", "Records that a sink, bytes that a source has yet to read.", labels=["connector"]
        )
        up = GaugeMetricFamily("oncelog_connect_up", "1 while the connector works.", labels=["connector"])
        for row in rows:
            lag.add_metric([row["connector"]], row["lag"])
            up.add_metric([row["connector"]], row["state"] in ("starting", "running"))
        yield from (lag, up, *_of_snapshots(rows))


def _of_snapshots(rows: list[dict[str, Any]]) -> list[GaugeMetricFamily]:
    texts = {
        "rows": "Rows of a table that its snapshot, which is being taken, has read.",
        "estimated": "Rows that the database takes that table to have.",
    }
    gauges = []
    for name, text in texts.items():
        gauge = GaugeMetricFamily(f"oncelog_connect_snapshot_{name}", text, labels=["connector", "table"])
        for row in rows:
            if row["snapshot"] is not None:
                gauge.add_metric([row["connector"], row["snapshot"]["table"]], row["snapshot"][name])
        gauges.append(gauge)
    return gauges
