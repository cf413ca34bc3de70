"""An admin client of an imaginary cluster, which counts requests and can change between two questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from oncelog.client import OffsetAndMetadata
from oncelog.client.admin import (
    ClusterDescription,
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetSpec,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from oncelog.client.admin_topics import OffsetResult
from oncelog.client.cluster import Broker, PartitionInfo, TopicInfo
from oncelog.client.visibility import IsolationLevel
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets


def producer(producer_id: int, start_offset: int, *, epoch: int = 0, last_ms: int = 1_000) -> ProducerDescription:
    return ProducerDescription(producer_id, epoch, 0, last_ms, 0, start_offset)


def described(
    name: str, producer_id: int, *partitions: TopicPartition, state: str = "Ongoing", epoch: int = 0
) -> TransactionDescription:
    start_ms = 500 if state in ("Ongoing", "PrepareCommit", "PrepareAbort") else -1
    return TransactionDescription(name, state, producer_id, epoch, 60_000, start_ms, list(partitions), "h:1")


class FakeAdmin:
    """`before` is called with the name of each question before it is answered."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, PartitionOffsets] = {}
        self.without_leader: set[TopicPartition] = set()
        self.producers: dict[TopicPartition, list[ProducerDescription]] = {}
        self.transactions: dict[str, TransactionDescription] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.unreadable: set[str] = set()
        """Topics that whoever asks may see and not read."""
        self.hidden_groups: set[str] = set()
        """They are listed, and may not be described."""
        self.hides_ids = False
        self.asked: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda _: None

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        self.before(what)

    def describe_cluster(self) -> ClusterDescription:
        self._ask("cluster")
        return ClusterDescription("c", 1, [Broker(1, "h", 1)], {})

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        self._ask("topics")
        found: dict[str, list[PartitionInfo]] = {}
        for place in sorted(self.offsets.keys() | self.without_leader):
            leader = -1 if place in self.without_leader else 1
            isr = () if leader < 0 else (1,)
            found.setdefault(place.topic, []).append(PartitionInfo(*place, leader, 0, (1,), isr, 0))
        return {name: TopicInfo(name, UUID(int=1), False, tuple(infos)) for name, infos in found.items()}

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetResult]:
        self._ask("offsets")
        answer = {}
        for place, spec in specs.items():
            found = self.offsets[place]
            offset = found.start if spec == OffsetSpec.EARLIEST else found.limit(isolation)
            answer[place] = OffsetResult(-1 if spec >= 0 else offset, -1, -1)
        return answer

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, readable_only: bool = False
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        self._ask("producers")
        readable = [place for place in partitions if place.topic not in self.unreadable]
        if not readable_only and len(readable) < len(list(partitions)):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return {place: list(self.producers.get(place, [])) for place in readable}

    def list_transactions(self, *, producer_ids: Iterable[int] = (), **_: object) -> list[TransactionListing]:
        self._ask("transactions")
        wanted = set(producer_ids)
        return [
            TransactionListing(one.transactional_id, one.producer_id, one.state, 1)
            for one in self.transactions.values()
            if not self.hides_ids and (not wanted or one.producer_id in wanted)
        ]

    def describe_transactions(self, names: Iterable[str]) -> dict[str, TransactionDescription]:
        self._ask("transaction")
        if self.hides_ids:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        for name in names:
            if name not in self.transactions:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
        return {name: self.transactions[name] for name in names}

    def list_groups(self) -> list[GroupListing]:
        self._ask("groups")
        return [GroupListing(name, "consumer", "Stable", "classic") for name in sorted(self.groups)]

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        self._ask("group")
        if not self.hidden_groups.isdisjoint(names):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return {
            name: GroupDescription(
                name, "Stable", "consumer", "range", "h:1",
                [MemberDescription("m", None, "client", "/1", [], list(self.groups[name]))],
            )
            for name in names
        }  # fmt: skip

    def group_offsets(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        self._ask("committed")
        return {place: OffsetAndMetadata(offset, "note") for place, offset in self.groups[name].items()}
