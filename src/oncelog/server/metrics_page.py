"""Counters and gauges in Kafka's vocabulary, as Prometheus wants them. Imported only where there is a port for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from oncelog.core.ids import TopicPartition
from oncelog.protocol.api_keys import ApiKey
from oncelog.server.metrics import LATENCY_BOUNDS_S
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.replication import ReplicaFigures


_PARTITIONS_PER_STEP: Final = 100


def read_metrics(broker: Broker) -> Steps[Reading]:
    """The figures of a broker at a scrape, partition by partition. On the thread that owns its state."""
    now_ms = broker.now_ms()
    timeout_max_ms = broker.settings.integer("transaction.max.timeout.ms")
    figures: list[tuple[TopicPartition, tuple[int, int, int, int]]] = []
    late = 0
    for number, partition in enumerate(broker.partitions, start=1):
        if number % _PARTITIONS_PER_STEP == 0:
            yield
        if partition.closed:
            continue  # its topic was deleted meanwhile
        log = partition.log
        held_back = partition.high_watermark - partition.last_stable_offset
        sizes = (log.size_bytes, log.log_end_offset, log.log_start_offset, held_back)
        figures.append((partition.topic_partition, sizes))
        late += log.producer_state.has_late_transaction(now_ms, timeout_max_ms)
    yield
    by_state = yield from broker.transactions.count_by_state()
    return Reading(
        {key: (stats.count, stats.total_s, list(stats.buckets)) for key, stats in broker.metrics.requests.items()},
        broker.metrics.connections,
        dict(broker.metrics.rejections),
        figures,
        late,
        by_state,
        broker.transactions.parked_count,
        broker.budget.held_bytes,
        broker.budget.closed_connections,
        None if broker.replication is None else broker.replication.figures(),
    )


class Reading(NamedTuple):
    """The figures of a scrape as plain values. prometheus_client calls `collect`."""

    requests: Mapping[int, tuple[int, float, list[int]]]
    connections: int
    rejections: Mapping[str, int]
    partitions: Sequence[tuple[TopicPartition, tuple[int, int, int, int]]]
    late: int
    transactional_ids: Mapping[str, int]
    parked: int
    held_bytes: int
    closed_for_memory: int
    replicas: ReplicaFigures | None = None
    """Of a broker in a cluster."""

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._logs()
        yield from self._transactions()
        if self.replicas is not None:
            yield from self._replicas(self.replicas)

    def _replicas(self, figures: ReplicaFigures) -> Iterator[Metric]:
        for name, about, value in (
            ("leader_count", "Partitions that this broker leads", figures.led),
            ("partition_count", "Partitions that this broker keeps", figures.kept),
            ("under_replicated_partitions", "Led here, and not all replicas are in sync", figures.under_replicated),
            ("under_min_isr_partition_count", "Led here, with fewer in sync than the minimum", figures.under_min_isr),
            ("at_min_isr_partition_count", "Led here, with just as many in sync as the minimum", figures.at_min_isr),
            ("reassigning_partitions", "Led here, and being moved to other brokers", figures.reassigning),
            ("offline_replica_count", "Kept here, and cannot be used", figures.offline),
        ):
            yield GaugeMetricFamily(f"kafka_server_replicamanager_{name}", about, value=value)
        lag = "Committed records that the replica furthest behind its leader did not have at its last fetch"
        yield GaugeMetricFamily("kafka_server_replicafetchermanager_max_lag", lag, value=figures.fetch_lag_max)
        for name, about, value in (
            ("isr_shrinks", "Replicas that this leader proposed to be out of sync", figures.isr_shrinks),
            ("isr_expands", "Replicas that this leader proposed to be in sync again", figures.isr_expands),
        ):
            yield CounterMetricFamily(f"kafka_server_replicamanager_{name}", about, value=value)

    def _requests(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily(
            "kafka_network_request_total_time_seconds",
            "Time from a request's arrival to its answer",
            labels=["request"],
        )
        for key, (count, total_s, counts) in self.requests.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound_s, within in zip(LATENCY_BOUNDS_S, counts, strict=False):
                total += within
                buckets.append((str(bound_s), total))
            buckets.append(("+Inf", count))
            seconds.add_metric([ApiKey(key).name.lower()], buckets, total_s)
        yield seconds
        yield GaugeMetricFamily("kafka_server_connection_count", "Open client connections", value=self.connections)
        yield GaugeMetricFamily(
            "oncelog_connections_held_bytes",
            "Large requests in reception or service and answers not yet taken, of all connections",
            value=self.held_bytes,
        )
        yield CounterMetricFamily(
            "oncelog_connections_closed_for_memory",
            "Connections closed because they held most when oncelog.connections.max.bytes was exceeded",
            value=self.closed_for_memory,
        )
        errors = CounterMetricFamily("kafka_network_request_errors", "Refused requests, by error", labels=["error"])
        for name, count in self.rejections.items():
            errors.add_metric([name], count)
        yield errors

    def _logs(self) -> Iterator[Metric]:
        families = [
            GaugeMetricFamily(name, about, labels=["topic", "partition"])
            for name, about in (
                ("kafka_log_size_bytes", "Bytes of a partition's log"),
                ("kafka_log_end_offset", "Next offset of a partition"),
                ("kafka_log_start_offset", "First offset of a partition"),
                (
                    "kafka_cluster_partition_last_stable_offset_lag",
                    "Records between the last stable offset and the high watermark",
                ),
            )
        ]
        for (topic, partition), values in self.partitions:
            for family, value in zip(families, values, strict=True):
                family.add_metric([topic, str(partition)], value)
        yield from families
        yield GaugeMetricFamily(
            "kafka_server_replicamanager_partitions_with_late_transactions_count",
            "Partitions on which a transaction is open for longer than any time-out allows",
            value=self.late,
        )

    def _transactions(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "oncelog_transactional_ids", "Transactional ids by the state of their transaction", labels=["state"]
        )
        for state, count in self.transactional_ids.items():
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily(
            "oncelog_parked_requests", "Requests waiting for a transaction to settle", value=self.parked
        )
