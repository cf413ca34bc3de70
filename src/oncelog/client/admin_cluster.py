"""The cluster as a whole: brokers, features, log directories, leader elections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.attempts import Attempts
from oncelog.client.cluster import Broker
from oncelog.client.offsets import by_topic
from oncelog.client.wire import features_in, versions_request
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.api_versions import ApiVersionsResponse
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from oncelog.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from oncelog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from oncelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
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


class QuorumReplica(NamedTuple):
    node_id: int
    end_offset: int
    """Up to where it has the metadata log."""


class QuorumDescription(NamedTuple):
    """The controllers of a cluster, and the brokers that follow their metadata log."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class Reassignment(NamedTuple):
    """Of a partition that is being moved."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ClusterAdmin(AdminBase):
    async def describe_cluster(self) -> ClusterDescription:
        """Brokers, controller and finalised features."""
        response = await self._ask_any(DescribeClusterRequest(), DescribeClusterResponse)
        raise_first([(response.error_code, "the cluster", response.error_message)])
        # Those that a connection has learned are as old as the connection.
        features = features_in(await self._ask_any(versions_request(), ApiVersionsResponse))
        brokers = [Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return ClusterDescription(response.cluster_id, response.controller_id, sorted(brokers), features)

    async def describe_quorum(self) -> QuorumDescription:
        """The controllers. Raises UNSUPPORTED_VERSION where brokers know no quorum, as those of Kafka on ZooKeeper."""
        wanted = RequestTopicData(topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)])
        response = await self._ask_any(DescribeQuorumRequest(topics=[wanted]), DescribeQuorumResponse)
        raise_first([(response.error_code, "the quorum", response.error_message)])
        partition = response.topics[0].partitions[0]
        raise_first([(partition.error_code, "the quorum", partition.error_message)])
        voters, observers = (
            [QuorumReplica(replica.replica_id, replica.log_end_offset) for replica in replicas]
            for replicas in (partition.current_voters, partition.observers)
        )
        return QuorumDescription(
            partition.leader_id, partition.leader_epoch, partition.high_watermark, sorted(voters), sorted(observers)
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
        attempts = Attempts()
        response = await self._ask_controller(
            request, ElectLeadersResponse, lambda answer: [answer.error_code], attempts
        )
        raise_first([(response.error_code, "electing leaders", None)], attempts)
        raise_first(
            (
                (p.error_code, f"electing a leader of {result.topic}-{p.partition_id}", p.error_message)
                for result in response.replica_election_results
                for p in result.partition_result
                if p.error_code != ErrorCode.ELECTION_NOT_NEEDED
            ),
            attempts,
        )

    async def reassign_partitions(self, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Begin to move partitions to other brokers, the preferred leader first; None cancels what is under way."""
        topics: dict[str, ReassignableTopic] = {}
        for (topic, index), nodes in replicas.items():
            wanted = ReassignablePartition(partition_index=index, replicas=None if nodes is None else list(nodes))
            topics.setdefault(topic, ReassignableTopic(name=topic)).partitions.append(wanted)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self.cluster.config.request_timeout_ms, topics=list(topics.values())
        )
        attempts = Attempts()
        response = await self._ask_controller(
            request, AlterPartitionReassignmentsResponse, lambda answer: [answer.error_code], attempts
        )
        raise_first([(response.error_code, "reassigning partitions", response.error_message)], attempts)
        raise_first(
            (
                (p.error_code, f"reassigning {topic.name}-{p.partition_index}", p.error_message)
                for topic in response.responses
                for p in topic.partitions
            ),
            attempts,
        )

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Partitions that are being moved."""
        request = ListPartitionReassignmentsRequest(timeout_ms=self.cluster.config.request_timeout_ms)
        response = await self._ask_controller(
            request, ListPartitionReassignmentsResponse, lambda answer: [answer.error_code], Attempts()
        )
        raise_first([(response.error_code, "listing reassignments", response.error_message)])
        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in response.topics
            for p in topic.partitions
        }

    async def eligible_leaders(self, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
        """Replicas that are not in sync but have all that is committed (KIP-966), of partitions that have some."""
        wanted = [TopicRequest(name=name) for name in topics]
        found: dict[TopicPartition, tuple[int, ...]] = {}
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(topics=wanted, cursor=cursor)
            response = await self._ask_any(request, DescribeTopicPartitionsResponse)
            for topic in response.topics:
                for p in topic.partitions:
                    if p.eligible_leader_replicas:
                        found[TopicPartition(topic.name or "", p.partition_index)] = tuple(p.eligible_leader_replicas)
            cursor = response.next_cursor
            if cursor is None:
                return found

    async def unregister_broker(self, node_id: int) -> None:
        """Have the cluster forget a broker that is stopped and will not come back."""
        attempts = Attempts()
        response = await self._ask_controller(
            UnregisterBrokerRequest(broker_id=node_id),
            UnregisterBrokerResponse,
            lambda answer: [answer.error_code],
            attempts,
        )
        failure = (response.error_code, f"unregistering broker {node_id}", response.error_message)
        raise_first([failure], attempts)

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
        attempts = Attempts()
        response = await self._ask_controller(
            request, UpdateFeaturesResponse, lambda answer: [answer.error_code], attempts
        )
        raise_first([(response.error_code, "updating features", response.error_message)], attempts)
        raise_first(((r.error_code, f"feature {r.feature}", r.error_message) for r in response.results), attempts)
