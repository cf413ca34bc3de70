"""Counters and gauges in Kafka's vocabulary, for Prometheus.

Counting a request must cost next to nothing, so the hot path adds to plain lists; the values become Prometheus
metrics when somebody scrapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from oncelog.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from oncelog.server.broker import Broker

_LATENCY_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class RequestStats:
    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets = [0] * (len(_LATENCY_BOUNDS_S) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        for i, bound_s in enumerate(_LATENCY_BOUNDS_S):
            if seconds <= bound_s:
                self.buckets[i] += 1
                return
        self.buckets[-1] += 1


class Metrics:
    def __init__(self) -> None:
        self.requests: dict[int, RequestStats] = {}
        self.connections = 0
        self.rejections: dict[str, int] = {}

    def request_served(self, api_key: int, seconds: float) -> None:
        stats = self.requests.get(api_key)
        if stats is None:
            stats = self.requests[api_key] = RequestStats()
        stats.add(seconds)

    def rejected(self, error_name: str) -> None:
        self.rejections[error_name] = self.rejections.get(error_name, 0) + 1


class BrokerCollector:
    """Reads a broker's state at the moment of a scrape.

    Scrapes come on a thread of their own; `on_owner` runs a function on the thread that owns the broker's state and
    waits for what it returns.
    """

    def __init__(self, broker: Broker, on_owner: Callable[[Callable[[], list[Metric]]], list[Metric]]) -> None:
        self._broker = broker
        self._on_owner = on_owner

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._on_owner(lambda: [*self._requests(), *self._logs(), *self._transactions()])

    def _requests(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        seconds = HistogramMetricFamily(
            "kafka_network_request_total_time_seconds",
            "Time from a request's arrival to its answer",
            labels=["request"],
        )
        for key, stats in self._broker.metrics.requests.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound_s, count in zip(_LATENCY_BOUNDS_S, stats.buckets, strict=False):
                total += count
                buckets.append((str(bound_s), total))
            buckets.append(("+Inf", stats.count))
            seconds.add_metric([ApiKey(key).name.lower()], buckets, stats.total_s)
        yield seconds
        yield GaugeMetricFamily(
            "kafka_server_connection_count", "Open client connections", value=self._broker.metrics.connections
        )
        errors = CounterMetricFamily("kafka_network_request_errors", "Refused requests, by error", labels=["error"])
        for name, count in self._broker.metrics.rejections.items():
            errors.add_metric([name], count)
        yield errors

    def _logs(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        size = GaugeMetricFamily("kafka_log_size_bytes", "Bytes of a partition's log", labels=["topic", "partition"])
        end = GaugeMetricFamily("kafka_log_end_offset", "Next offset of a partition", labels=["topic", "partition"])
        start = GaugeMetricFamily(
            "kafka_log_start_offset", "First offset of a partition", labels=["topic", "partition"]
        )
        lag = GaugeMetricFamily(
            "kafka_cluster_partition_last_stable_offset_lag",
            "Records between the last stable offset and the high watermark",
            labels=["topic", "partition"],
        )
        late = 0
        now_ms = self._broker.now_ms()
        timeout_max_ms = self._broker.settings.integer("transaction.max.timeout.ms")
        for partition in self._broker.partitions:
            labels = [partition.topic_partition.topic, str(partition.topic_partition.partition)]
            size.add_metric(labels, partition.log.size_bytes)
            end.add_metric(labels, partition.log.log_end_offset)
            start.add_metric(labels, partition.log.log_start_offset)
            lag.add_metric(labels, partition.high_watermark - partition.last_stable_offset)
            late += partition.log.producer_state.has_late_transaction(now_ms, timeout_max_ms)
        yield from (size, end, start, lag)
        yield GaugeMetricFamily(
            "kafka_server_replicamanager_partitions_with_late_transactions_count",
            "Partitions on which a transaction is open for longer than any time-out allows",
            value=late,
        )

    def _transactions(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        states = GaugeMetricFamily(
            "oncelog_transactional_ids", "Transactional ids by the state of their transaction", labels=["state"]
        )
        for state, count in self._broker.transactions.count_by_state().items():
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily(
            "oncelog_parked_requests",
            "Requests waiting for a transaction to settle",
            value=self._broker.transactions.parked_count,
        )
