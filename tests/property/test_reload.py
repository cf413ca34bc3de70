"""A coordinator that is loaded from its log is the one that lived: random members, offsets and transactions.

They go through the broker. What is compared is what clients can ask for and what `durable_state` knows, after any
number of operations, with a shard that is built the way a start builds it, before and after compaction.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.core.ids import GROUP_METADATA_TOPIC, NULL_UUID, TRANSACTION_STATE_TOPIC
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.server.coordinator_runtime import CoordinatorRuntime, LiveShard, _ShardReplayer
from oncelog.server.shard_log import replay_log
from tests.simulation.station import memory_folder
from tests.unit.coordinator.group.shard_state import durable_state
from tests.unit.coordinator.txn.txn_harness import as_recorded
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_transactions import Producer

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.segment.bytes": "700",
    "transaction.state.log.segment.bytes": "700",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "3600000",
    "offsets.retention.minutes": "30",
    "group.initial.rebalance.delay.ms": "0",
    "transactional.id.expiration.ms": "1800000",
    "transaction.two.phase.commit.enable": "true",
}
TOPIC = "in"
PARTITIONS = 2
GROUPS = ("g", "h")
FILLER = "filler"
IDS = ("a", "b", "a")
"""One has two producers, of which each fences the other."""

groups = st.sampled_from(GROUPS)
partitions = st.integers(0, PARTITIONS - 1)
producers = st.integers(0, len(IDS) - 1)


class Reload(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="oncelog-", dir=memory_folder())
        self.node = BrokerInProcess(Path(self.folder.name), SETTINGS)
        self.node.create(TOPIC, PARTITIONS)
        self.producers = [Producer(self.node, each, timeout_ms=600_000) for each in IDS]
        for producer in self.producers:
            self.node.until(producer.init())
        self.offset = 0

    @rule(group=groups, partition=partitions)
    def commit(self, group: str, partition: int) -> None:
        self.offset += 1
        entry = OffsetCommitRequestPartition(partition_index=partition, committed_offset=self.offset)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[entry])]
        self.node.call(
            OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics), 8
        )

    @rule(group=groups, partition=partitions, who=producers)
    def commit_in_transaction(self, group: str, partition: int, who: int) -> None:
        self.offset += 1
        if not self.committed_in_transaction(group, partition, self.producers[who]):
            self.producers[who].init()
            self.committed_in_transaction(group, partition, self.producers[who])

    def committed_in_transaction(self, group: str, partition: int, producer: Producer) -> bool:
        entry = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=self.offset)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=group,
            producer_id=producer.pid,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[entry])],
        )
        return not self.node.call(request, 5).topics[0].partitions[0].error_code

    @rule(partition=partitions, who=producers)
    def produce_in_transaction(self, partition: int, who: int) -> None:
        producer = self.producers[who]
        if producer.produce(TOPIC, b"x", partition=partition).error_code:
            producer.init()
            producer.produce(TOPIC, b"x", partition=partition)

    @rule(group=groups, wanted=st.sets(partitions, min_size=1))
    def delete_offsets(self, group: str, wanted: set[int]) -> None:
        entries = [OffsetDeleteRequestPartition(partition_index=partition) for partition in wanted]
        topics = [OffsetDeleteRequestTopic(name=TOPIC, partitions=entries)]
        self.node.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)

    @rule(group=groups, partition=partitions)
    def delete_and_commit(self, group: str, partition: int) -> None:
        """As an operator does who sets a group back."""
        self.delete_offsets(group, {partition})
        self.commit(group, partition)

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        self.node.call(DeleteGroupsRequest(groups_names=[group]), 2)

    @rule(who=producers, commit=st.booleans())
    def end_transaction(self, who: int, commit: bool) -> None:
        self.producers[who].end(commit)

    @rule(who=producers)
    def init(self, who: int) -> None:
        self.producers[who].init()

    @rule(who=producers, enable_2pc=st.booleans())
    def init_and_keep_what_is_prepared(self, who: int, enable_2pc: bool) -> None:
        producer = self.producers[who]
        request = InitProducerIdRequest(
            transactional_id=producer.transactional_id,
            transaction_timeout_ms=producer.timeout_ms,
            enable2_pc=enable_2pc,
            keep_prepared_txn=True,
        )
        self.node.send(request, 6).map(producer._take)
        self.node.clock.advance_ms(0)

    @rule(group=groups, version=st.integers(0, 1))
    def a_static_member_joins(self, group: str, version: int) -> None:
        """Of a new group, of one that it is in, or in place of itself."""
        name = f"instance-{group}"
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            group_instance_id=name,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes([version]))],
        )
        joined = self.node.send(join, 9)
        self.node.until(joined)
        assert joined.value.error_code == 0
        member_id, generation_id = joined.value.member_id, joined.value.generation_id
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=name,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
        )
        assert self.node.call(sync, 5).error_code == 0

    @rule(group=groups)
    def a_static_member_is_removed(self, group: str) -> None:
        member = MemberIdentity(member_id="", group_instance_id=f"instance-{group}")
        self.node.call(LeaveGroupRequest(group_id=group, members=[member]), 5)

    @rule()
    def the_topic_is_made_again(self) -> None:
        self.node.delete(TOPIC)
        self.node.clock.advance_ms(1_000)
        self.node.create(TOPIC, PARTITIONS)

    @rule(elapsed_ms=st.sampled_from([1_000, 60_000, 3_600_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        """Compaction, expiry of offsets and ids, time-outs of transactions and sessions."""
        self.node.clock.advance_ms(elapsed_ms)

    @rule()
    def compaction(self) -> None:
        """Behind enough records of a group that nobody looks at, for all before them to be in closed segments."""
        for _ in range(8):
            self.commit(FILLER, 0)
        self.node.clock.advance_ms(2_000)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.node.restart(clean=clean)

    @invariant()
    def groups_are_what_they_would_be_after_a_start(self) -> None:
        for live in self.node.broker.groups.shards:
            self.compare_groups(live.shard, self.loaded_groups())

    def compare_groups(self, living: GroupShard, loaded: GroupShard) -> None:
        assert durable_state(loaded) == durable_state(living)
        assert groups_of(loaded) == groups_of(living)
        for group in GROUPS:
            assert fetched(loaded, group) == fetched(living, group)

    @invariant()
    def transactions_are_what_they_would_be_after_a_start(self) -> None:
        (live,) = self.node.broker.transactions.shards
        assert self.recorded(self.loaded_transactions()) == self.recorded(live.shard)

    def loaded_groups(self) -> GroupShard:
        shard: GroupShard = self.loaded(self.node.broker.groups.shards, GROUP_METADATA_TOPIC)
        shard.loaded(self.node.broker.now_ms())
        return shard

    def loaded_transactions(self) -> TxnShard:
        shard: TxnShard = self.loaded(self.node.broker.transactions.shards, TRANSACTION_STATE_TOPIC)
        return shard

    def loaded(self, runtime: CoordinatorRuntime[Any, Any], topic: str) -> Any:
        """A second shard from the same log, beside the living one."""
        partition = self.node.broker.partitions.get(topic, 0)
        live = LiveShard(0, runtime._new_shard(0), partition)
        for _ in replay_log(partition, _ShardReplayer(live, self.node.broker.now_ms(), runtime._log)):
            pass
        return live.shard

    def recorded(self, shard: TxnShard) -> dict[str, Any]:
        version = shard.config.transaction_version
        return {name: as_recorded(entry.metadata, version) for name, entry in shard._entries.items()}

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.broker.stop(clean=False)
            self.folder.cleanup()


def groups_of(shard: GroupShard) -> dict[str, tuple[str, str]]:
    return {group.group_id: (group.protocol_type, group.group_state) for group in shard.list_groups()}


def fetched(shard: GroupShard, group: str) -> list[object]:
    return [
        sorted(shard.commits.committed_partitions(group)),
        *(
            shard.commits.fetch(group, TOPIC, NULL_UUID, range(PARTITIONS), require_stable=stable)
            for stable in (False, True)
        ),
    ]


Reload.TestCase.settings = settings(max_examples=80, stateful_step_count=30, suppress_health_check=list(HealthCheck))
TestReload = Reload.TestCase
