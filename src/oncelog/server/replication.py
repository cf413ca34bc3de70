"""Replicas of this broker: their roles, what they fetch from other leaders, and who is in sync with those led here.

The metadata gives each partition its role (`take_roles`), in Kafka's order: what is gone or no longer kept here first,
since a topic of the same name may come in the same delta, then leaders, then followers. One `cluster.follower` per
leader fetches, `cluster.isr_changes` tells the controller who is in sync.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog.cluster.cluster_config import ClusterConfig
from oncelog.cluster.isr_changes import TIMEOUT_MS, IsrChanges, PartitionKey
from oncelog.cluster.partition import FOLLOWER_TOKEN, Partition
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replicas import ProposalReaction, ReplicaRules
from oncelog.controller.delta import Delta, TopicIdPartition
from oncelog.controller.image import Image
from oncelog.controller.partition_image import PartitionImage
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, NodeId, TopicPartition
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.protocol.messages.alter_partition import AlterPartitionResponse
from oncelog.protocol.messages.fetch import FetchResponse
from oncelog.protocol.schema import Message
from oncelog.server.directory_reports import REPORT_INTERVAL_MS, DirectoryReports
from oncelog.server.disk_watch import LOOK_INTERVAL_MS, DiskWatch
from oncelog.server.membership import Membership
from oncelog.server.peers import Answer, Peers, Pump
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.replication_throttle import ReplicationThrottle
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.cluster.follower import LeaderFetcher
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

ROLES_RETRY_MS: Final = 1_000
_UNREACHABLE_MS: Final = 100


class _Fetching(NamedTuple):
    fetcher: LeaderFetcher
    pump: Pump


class ReplicaFigures(NamedTuple):
    """What the metrics show of replication."""

    led: int
    kept: int
    under_replicated: int
    under_min_isr: int
    at_min_isr: int
    reassigning: int
    offline: int
    isr_shrinks: int
    isr_expands: int
    fetch_lag_max: int


class Replication:
    def __init__(
        self, broker: Broker, membership: Membership, peers: Peers, config: ClusterConfig, listener: str
    ) -> None:
        """`listener` is the name of the one by which brokers reach each other."""
        self._broker = broker
        self._membership = membership
        self._peers = peers
        self._config = config
        self._listener = listener
        self._image = Image()
        self._leaders: dict[NodeId, _Fetching] = {}
        self.fetch_sessions = broker.new_fetch_sessions()
        """Of brokers that follow; consumers have their own, and so cannot use up the room, nor name one of these."""
        self.leader_throttle = ReplicationThrottle(broker, "leader")
        self._follower_throttle = ReplicationThrottle(broker, "follower")
        self._isr_changes = IsrChanges(broker.node_id)
        self._isr_pump = Pump(broker.scheduler, self._poll_isr)
        self._directories = DirectoryReports(broker, membership)
        self._errors = RepeatedErrors(log, logging.WARNING)
        self._failed: dict[TopicIdPartition, PartitionState] = {}
        """Partitions that could not take the role they were given."""
        self.isr_shrinks = 0
        self.isr_expands = 0

    @property
    def rules(self) -> ReplicaRules:
        return ReplicaRules(lambda broker: self._image.brokers.get(broker), self._config.lag_max_ms)

    def start(self) -> None:
        recurring = self._broker.recurring
        recurring.every("in-sync replicas", max(1, self._config.lag_max_ms // 2), self._shrink)
        recurring.every("roles of replicas", ROLES_RETRY_MS, self._retry_roles)
        recurring.every("directories of replicas", REPORT_INTERVAL_MS, self._directories.report)
        if self._broker.is_in_cluster:
            recurring.every("the disk", LOOK_INTERVAL_MS, DiskWatch(self._broker, self._membership, self).look)

    def stop(self) -> None:
        self._isr_pump.stop()
        for fetching in self._leaders.values():
            fetching.pump.stop()

    def address_of(self, node: NodeId) -> Address | None:
        """Where a broker is reached by other brokers; None while it is not there."""
        registration = self._image.brokers.get(node)
        endpoint = None if registration is None else registration.listeners.get(self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def call(self, node: NodeId, purpose: str, request: Message, timeout_ms: int) -> Promise[Answer]:
        address = self.address_of(node)
        if address is None:
            return Promise.resolved(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node} is not there"))
        return self._peers.call(purpose, address, request, timeout_ms)

    # -- roles

    def take_roles(self, image: Image, delta: Delta) -> Steps[None]:
        """Until its turn comes, a partition goes on in the role that it has, unless a request opens it in its new one.
        Coordinators follow roles as they are taken, so the partitions of their topics do not wait."""
        self._image = image
        node = self._broker.node_id
        led: list[tuple[TopicIdPartition, PartitionState]] = []
        followed: list[tuple[TopicIdPartition, PartitionState]] = []
        gone: list[tuple[TopicIdPartition, PartitionImage]] = []
        for key, (before, after) in delta.partitions.items():
            if after is not None and node in after.replicas:
                if not self._has_role_when_used(key):
                    state = PartitionState.from_image(after)
                    (led if state.leader == node else followed).append((key, state))
            elif before is not None and node in before.replicas:
                # Only these: a topic of the same name may be kept elsewhere now, and the log here is not of that one.
                gone.append((key, after or before))
            yield
        yield from self._directories.follow(delta)
        for key, _ in gone if self._failed else ():
            self._failed.pop(key, None)
        yield from self._remove(gone)
        roles = [*led, *followed]
        for key, state in roles:
            if key.topic in INTERNAL_TOPICS:
                self._take_role(key, state)
        for key, state in roles:
            if key.topic not in INTERNAL_TOPICS:
                self._take_role(key, state)
            yield
        if delta.brokers or delta.settings:
            # A broker that was fenced may join an ISR now, and the minimum of an ISR may be another.
            for partition in self._broker.partitions:
                if not partition.closed:
                    partition.update_high_watermark()
                    self.expand(partition)
                yield
        for fetching in self._leaders.values():
            fetching.pump.kick()

    def _has_role_when_used(self, key: TopicIdPartition) -> bool:
        """On a node that is alone it takes its role, and its folder is made, when it is first used."""
        is_opened = self._broker.is_in_cluster or self._broker.partitions.opened(key.topic, key.partition) is not None
        return not is_opened and key.topic not in INTERNAL_TOPICS

    def _remove(self, partitions: Sequence[tuple[TopicIdPartition, PartitionImage]]) -> Steps[None]:
        """Give up replicas that this broker no longer keeps. Those of deleted topics are gone by now."""
        moved = []
        for key, image in partitions:
            kept = TopicPartition(key.topic, key.partition)
            if key.topic_id in self._image.topics and kept in self._broker.log_dir.logs:
                self.follow_none(key)
                opened = self._broker.partitions.opened(*kept)
                if opened is not None:
                    # Whoever waits is sent to the new leader: for clients, and for markers, the partition is not gone.
                    opened.become(PartitionState.from_image(image), self._broker.steady_ms())
                moved.append(kept)
            yield
        yield from self._broker.metadata_changes.remove_partitions(moved)

    def _take_role(self, key: TopicIdPartition, state: PartitionState) -> None:
        if self._failed:
            self._failed.pop(key, None)
        if state.leader == self._broker.node_id:
            self.follow_none(key)
        try:
            partition = self._broker.metadata_changes.take_role(TopicPartition(key.topic, key.partition), state)
        except (KafkaError, OSError) as error:
            log.error("%s-%d cannot take its role and will be tried again: %s", key.topic, key.partition, error)
            self.follow_none(key)
            self._failed[key] = state
            return
        if partition is None:
            return
        if partition.is_leader:
            partition.unwatch(FOLLOWER_TOKEN)
            self.expand(partition)
        else:
            self._follow(key, partition)

    @property
    def roles_not_taken(self) -> list[TopicPartition]:
        """Partitions that this broker should lead and others could."""
        return [
            TopicPartition(key.topic, key.partition)
            for key, state in self._failed.items()
            if state.leader == self._broker.node_id and len(state.in_sync) > 1
        ]

    def _retry_roles(self) -> None:
        for key, state in list(self._failed.items()):
            self._take_role(key, state)

    # -- following

    def _follow(self, key: TopicIdPartition, partition: Partition) -> None:
        leader = partition.state.leader
        from oncelog.cluster.follower_session import FollowedPartition

        followed = FollowedPartition(key.topic, key.topic_id, key.partition)
        for node, fetching in self._leaders.items():
            if node != leader:
                fetching.fetcher.forget(followed)
        if leader < 0:
            return
        fetching = self._fetching(leader)
        fetching.fetcher.follow(followed, partition, partition.leader_epoch)
        partition.watch(FOLLOWER_TOKEN, fetching.pump.kick)
        fetching.pump.kick()

    def follow_none(self, key: TopicIdPartition) -> None:
        if not self._leaders:
            return
        from oncelog.cluster.follower_session import FollowedPartition

        followed = FollowedPartition(key.topic, key.topic_id, key.partition)
        for fetching in self._leaders.values():
            fetching.fetcher.forget(followed)

    def _fetching(self, leader: NodeId) -> _Fetching:
        fetching = self._leaders.get(leader)
        if fetching is None:
            from oncelog.cluster.follower import LeaderFetcher

            fetcher = LeaderFetcher(self._broker.node_id, self._config.limits, self._follower_throttle)
            pump = Pump(self._broker.scheduler, lambda: self._poll_fetcher(leader, fetcher))
            fetching = self._leaders[leader] = _Fetching(fetcher, pump)
        return fetching

    def _poll_fetcher(self, leader: NodeId, fetcher: LeaderFetcher) -> int | None:
        now_ms = self._broker.steady_ms()
        address = self.address_of(leader)
        if address is None:
            return _UNREACHABLE_MS if len(fetcher) else None
        send = fetcher.poll(now_ms, self._membership.lifecycle.epoch)
        if send is not None:
            number = send.number
            self._peers.call("replica", address, send.request, self._config.limits.socket_timeout_ms).then(
                lambda answer: self._on_fetched(leader, number, answer)
            )
        wake_ms = fetcher.wake_ms(now_ms)
        return None if wake_ms is None else wake_ms - now_ms

    def _on_fetched(self, leader: NodeId, number: int, answer: Answer) -> None:
        from oncelog.protocol.messages.list_offsets import ListOffsetsResponse  # only where there are other brokers

        fetcher, pump = self._leaders[leader]
        now_ms, time_of_day_ms = self._broker.steady_ms(), self._broker.now_ms()
        if self._broker.stopped:
            return
        if not isinstance(answer, KafkaError):
            self._errors.clear(leader)
        if isinstance(answer, FetchResponse):
            fetcher.on_fetch(number, answer, now_ms, time_of_day_ms)
        elif isinstance(answer, ListOffsetsResponse):
            fetcher.on_offsets(number, answer, now_ms, time_of_day_ms)
        else:
            self._errors.report(leader, "broker %d cannot be fetched from: %s", leader, answer)
            fetcher.on_failure(number, now_ms)
        pump.kick()

    # -- leading

    def figures(self) -> ReplicaFigures:
        """Counts as Kafka has them: a replica that is being added is not missing yet."""
        partitions = list(self._broker.partitions)
        led = [partition for partition in partitions if partition.is_leader]
        images = [self._image_of(partition.topic_partition) for partition in led]
        in_sync = [len(partition.replicas.state.in_sync) if partition.replicas is not None else 0 for partition in led]
        wanted = [
            len(partition.state.replicas) - (0 if image is None else len(image.adding_replicas))
            for partition, image in zip(led, images, strict=True)
        ]
        return ReplicaFigures(
            led=len(led),
            kept=len(partitions),
            under_replicated=sum(found < count for found, count in zip(in_sync, wanted, strict=True)),
            under_min_isr=sum(partition.is_under_min_isr for partition in led),
            at_min_isr=sum(partition.is_at_min_isr for partition in led),
            reassigning=sum(
                image is not None and bool(image.adding_replicas or image.removing_replicas) for image in images
            ),
            offline=len(self._failed) + sum(partition.is_broken for partition in partitions),
            isr_shrinks=self.isr_shrinks,
            isr_expands=self.isr_expands,
            fetch_lag_max=max((one.fetcher.lag_max for one in self._leaders.values()), default=0),
        )

    def _image_of(self, where: TopicPartition) -> PartitionImage | None:
        topic = self._image.topic(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def readers_in(self, partition: Partition, rack: str, offset: int) -> list[NodeId]:
        """The replicas to which a consumer in this rack may be sent; none if it is to read here."""
        if not self._config.serves_racks or partition.replicas is None:
            return []
        return partition.replicas.readers_in(rack, offset)

    def expand(self, partition: Partition) -> None:
        """A follower has fetched, or the metadata has changed: perhaps one is in sync now."""
        replicas = partition.replicas
        if replicas is None or not replicas.followers:
            return
        proposal = replicas.propose_expansion(
            partition.high_watermark, self._membership.lifecycle.epoch, partition.log_start_offset
        )
        if proposal is not None:
            log.info("%s: brokers %s are in sync", partition.topic_partition, list(proposal.in_sync))
            self.isr_expands += 1
            self._submit(partition)

    def _shrink(self) -> None:
        now_ms = self._broker.steady_ms()
        for partition in self._broker.partitions:
            replicas = partition.replicas
            if replicas is None or not replicas.followers:
                continue
            proposal = replicas.propose_shrink(partition.log_end_offset, self._membership.lifecycle.epoch, now_ms)
            if proposal is not None:
                log.warning("%s: only brokers %s are in sync", partition.topic_partition, list(proposal.in_sync))
                self.isr_shrinks += 1
                self._submit(partition)
            partition.update_high_watermark()

    def _submit(self, partition: Partition) -> None:
        topic = self._broker.metadata.topics.get(partition.topic_partition.topic)
        if topic is not None and partition.replicas is not None:
            key = PartitionKey(topic.topic_id, partition.topic_partition.partition)
            self._isr_changes.submit(key, partition.replicas)
            self._isr_pump.kick()

    def _poll_isr(self) -> int | None:
        now_ms = self._broker.steady_ms()
        send = self._isr_changes.poll(now_ms, self._membership.lifecycle.epoch)
        if send is not None:
            number = send.number
            self._membership.ask_controller("isr", send.request, AlterPartitionResponse, TIMEOUT_MS).then(
                lambda answer: self._on_isr(number, answer)
            )
        if self._isr_changes.is_idle:
            return None
        wake_ms = self._isr_changes.wake_ms
        return 0 if wake_ms is None else wake_ms - now_ms

    def _on_isr(self, number: int, answer: AlterPartitionResponse | KafkaError) -> None:
        now_ms = self._broker.steady_ms()
        if isinstance(answer, KafkaError):
            self._isr_changes.on_failure(number, now_ms)
        else:
            for key, reaction in self._isr_changes.on_response(number, answer, now_ms).items():
                topic = self._broker.metadata.topics_by_id.get(key.topic_id)
                partition = None if topic is None else self._broker.partitions.opened(topic.name, key.partition)
                if partition is not None:
                    partition.update_high_watermark()
                    if reaction is ProposalReaction.COMMIT:
                        # One who was refused is proposed again when it fetches: the controller knows something that
                        # is not in the metadata here yet, and would refuse it as often as it is asked.
                        self.expand(partition)
        self._isr_pump.kick()
