"""The cluster as a whole: brokers, features, log directories, leader elections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.attempts import Attempts
from oncelog.client.cluster import Broker
from oncelog.client.offsets import by_topic
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from oncelog.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

UPGRADE = 1
SAFE_DOWNGRADE = 2


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    brokers: list[Broker]
    features: dict[str, int]
    """The finalised feature levels, such as `transaction.version`."""


class LogDirectory(NamedTuple):
    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    """-1 when the broker does not tell."""
    partition_bytes: dict[TopicPartition, int]


class ClusterAdmin(AdminBase):
    async def describe_cluster(self) -> ClusterDescription:
        """Brokers, controller and finalised features."""
        response = await self._ask_any(DescribeClusterRequest(), DescribeClusterResponse)
        raise_first([(response.error_code, "the cluster", response.error_message)])
        connection = await self.cluster.any_broker()
        brokers = [Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return ClusterDescription(
            response.cluster_id, response.controller_id, sorted(brokers), dict(connection.wire.features)
        )

    async def describe_log_dirs(self, partitions: Iterable[TopicPartition] | None = None) -> list[LogDirectory]:
        """Folders and sizes of partitions on every broker, of all partitions for None."""
        topics = None
        if partitions is not None:
            topics = [DescribableLogDirTopic(topic=t, partitions=n) for t, n in by_topic(partitions).items()]
        directories = []
        for node_id, response in await self._ask_everyone(
            DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse
        ):
            raise_first([(response.error_code, f"log directories of broker {node_id}", None)])
            raise_first((r.error_code, f"{r.log_dir} of broker {node_id}", None) for r in response.results)
            directories += [
                LogDirectory(
                    node_id,
                    result.log_dir,
                    result.total_bytes,
                    result.usable_bytes,
                    {
                        TopicPartition(topic.name, p.partition_index): p.partition_size
                        for topic in result.topics
                        for p in topic.partitions
                        if not p.is_future_key
                    },
                )
                for result in response.results
            ]
        return directories

    async def elect_leaders(self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False) -> None:
        """Elect the preferred leaders, of all partitions for None. `unclean` accepts losing data to get a leader."""
        topics = None
        if partitions is not None:
            topics = [TopicPartitions(topic=t, partitions=n) for t, n in by_topic(partitions).items()]
        request = ElectLeadersRequest(
            election_type=int(unclean),
            topic_partitions=topics,
            timeout_ms=self.cluster.config.request_timeout_ms,
        )
        response = await self._ask_controller(
            request, ElectLeadersResponse, lambda answer: [answer.error_code], Attempts()
        )
        raise_first([(response.error_code, "electing leaders", None)])
        raise_first(
            (p.error_code, f"electing a leader of {result.topic}-{p.partition_id}", p.error_message)
            for result in response.replica_election_results
            for p in result.partition_result
            if p.error_code != ErrorCode.ELECTION_NOT_NEEDED
        )

    async def update_features(self, levels: Mapping[str, int], *, downgrade: bool = False) -> None:
        """Finalise feature levels, such as {"transaction.version": 2}."""
        request = UpdateFeaturesRequest(
            timeout_ms=self.cluster.config.request_timeout_ms,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=level,
                    allow_downgrade=downgrade,
                    upgrade_type=SAFE_DOWNGRADE if downgrade else UPGRADE,
                )
                for name, level in levels.items()
            ],
        )
        response = await self._ask_controller(
            request, UpdateFeaturesResponse, lambda answer: [answer.error_code], Attempts()
        )
        raise_first([(response.error_code, "updating features", response.error_message)])
        raise_first((r.error_code, f"feature {r.feature}", r.error_message) for r in response.results)
