"""Random histories of a cluster on a virtual clock: kills, cuts and moves of leaders under producers and a group.

What was acknowledged with acks=all is there at the end, once and in its order, and all replicas are equal. Transactions
have one outcome on all their partitions, and get it when all is healed; nobody gets a producer id twice; a group's
offsets and generation never go back.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.protocol.batch import decode_records, iter_headers, parse_control
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.produce import PartitionProduceResponse
from tests.unit.server.cluster_clients import GroupMember, ProducerIds, TransactionalProducer
from tests.unit.server.virtual_cluster import CONTROLLER, VirtualCluster

SESSION_MS = 9000
NODES = (1, 2, 3)
DONE = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class IdempotentProducer:
    """Sends one record after the other, each until it is acknowledged."""

    def __init__(self, cluster: VirtualCluster, name: str, producer_id: int) -> None:
        self._cluster = cluster
        self._name = name
        self._producer_id = producer_id
        self.acknowledged: list[str] = []
        self.is_stopping = False
        self.is_idle = True
        self._send()

    @property
    def _value(self) -> str:
        return f"{self._name} {len(self.acknowledged)}"

    def _send(self) -> None:
        if self.is_stopping and self.is_idle:
            return
        self.is_idle = False
        cluster = self._cluster
        node = cluster.nodes.get(cluster.leader("orders"))
        if node is None or node.broker is None:
            cluster.clock.call_later_ms(100, self._send)
            return
        sent = node.broker
        answer = node.produce(
            "orders",
            self._value.encode(),
            timeout_ms=2000,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=len(self.acknowledged),
        )
        is_answered = [False]

        def answered(response: PartitionProduceResponse | None) -> None:
            if is_answered[0]:
                return
            is_answered[0] = True
            if response is not None and ErrorCode(response.error_code) in DONE and not sent.stopped:
                self.acknowledged.append(self._value)
                self.is_idle = True
            cluster.clock.call_later_ms(20, self._send)

        answer.then(answered)
        cluster.clock.call_later_ms(5000, lambda: answered(None))  # of one that is killed meanwhile


class History:
    def __init__(self, folder: Path, seed: int, *, producers: int = len(NODES), **settings: str) -> None:
        self.chance = random.Random(seed)
        quick = {"replica_lag_time_max_ms": "3000", "replica_socket_timeout_ms": "1500"}
        self.cluster = VirtualCluster(folder, len(NODES), **quick, **settings).start()
        self.cluster.controller.create_topic("orders", NODES, min_insync_replicas="2")
        self.cluster.until(self.cluster.is_known_to_all)
        ids = [self._producer_id(node) for node in NODES[:producers]]
        self.producers = [IdempotentProducer(self.cluster, f"p{number}", pid) for number, pid in enumerate(ids)]
        self._watch_sessions()

    def _producer_id(self, node: int) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        found: int = self.cluster.result(self.cluster.nodes[node].send(request, 5)).producer_id
        return found

    def _watch_sessions(self) -> None:
        clock = self.cluster.clock
        self.cluster.controller.fence_silent(clock.monotonic_ms(), SESSION_MS)
        clock.call_later_ms(1000, self._watch_sessions)

    def run(self, faults: int) -> None:
        for _ in range(faults):
            self.chance.choice((self._kill, self._cut, self._move))()
            self.cluster.clock.advance_ms(self.chance.randrange(200, 4000))

    def _kill(self) -> None:
        alive = [node for node in NODES if self.cluster.nodes[node].broker is not None]
        if len(alive) < len(NODES):
            return
        node = self.cluster.nodes[self.chance.choice(alive)]
        node.kill()
        self.cluster.clock.call_later_ms(self.chance.randrange(0, 15_000), node.start)

    def _cut(self) -> None:
        one, other = self.chance.sample((CONTROLLER, *NODES), 2)
        self.cluster.cut(one, other)
        self.cluster.clock.call_later_ms(self.chance.randrange(500, 14_000), lambda: self.cluster.heal(one, other))

    def _move(self, topic: str = "orders", partition: int = 0) -> None:
        in_sync = self.cluster.isr(topic, partition)
        candidates = [node for node in in_sync if self.cluster.controller.is_active(node)]
        if candidates:
            self.cluster.controller.change(topic, partition, leader=self.chance.choice(candidates))

    def settle(self) -> None:
        cluster = self.cluster
        cluster.clock.advance_ms(20_000)
        cluster.heal()
        cluster.until(lambda: sorted(cluster.isr("orders")) == list(NODES), within_ms=120_000)
        for producer in self.producers:
            producer.is_stopping = True
        cluster.until(lambda: all(producer.is_idle for producer in self.producers), within_ms=120_000)
        cluster.until(lambda: len({self._content(node) for node in NODES}) == 1, within_ms=60_000)

    def _content(self, node: int) -> bytes:
        partition = self.cluster.nodes[node].running.partitions.opened("orders", 0)
        if partition is None:
            return b"not open"
        return b"".join(segment.log_file.path.read_bytes() for segment in partition.log.segments)

    def values(self) -> list[str]:
        data = self._content(1)
        return [
            (record.value or b"").decode()
            for position, header in iter_headers(data)
            for record in decode_records(data, position)
            if header.producer_id >= 0
        ]


@pytest.mark.parametrize(("seed", "fsync"), [(0, "false"), (1, "false"), (2, "true")])
def test_what_is_acknowledged_is_there_once_and_in_its_order(tmp_path: Path, seed: int, fsync: str) -> None:
    history = History(tmp_path, seed, oncelog_acks_fsync=fsync)
    history.run(faults=8)
    history.settle()
    values = history.values()
    for number, producer in enumerate(history.producers):
        assert len(producer.acknowledged) > 10
        assert [value for value in values if value.startswith(f"p{number} ")] == producer.acknowledged


class Found(NamedTuple):
    """What the log of a partition says."""

    committed: list[str]
    aborted: list[str]
    coordinator_epochs: dict[int, list[int]]
    """Of the markers, by producer id."""


class TransactionalHistory(History):
    """Two producers of either protocol write to two topics, with three partitions in all."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(
            folder,
            seed,
            producers=0,
            transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
            transaction_state_log_num_partitions="2",
            offsets_topic_num_partitions="1",
        )
        cluster = self.cluster
        compacted = {"min_insync_replicas": "2", "cleanup_policy": "compact"}
        self._create(TRANSACTION_STATE_TOPIC, 2, **compacted)
        self._create(GROUP_METADATA_TOPIC, 1, **compacted)
        self._create("bills", 2, min_insync_replicas="2")
        self._create("stock", 1, min_insync_replicas="2")
        cluster.until(cluster.is_known_to_all)
        self.written = [TopicPartition("bills", 0), TopicPartition("bills", 1), TopicPartition("stock", 0)]
        self.ids = ProducerIds()
        self.writers = [
            TransactionalProducer(cluster, f"t{number}", self.written, self.ids, is_tv2=number % 2 == 0)
            for number in range(4)
        ]
        self.member = GroupMember(cluster, "g")
        for client in (*self.writers, self.member):
            client.start()

    def _create(self, topic: str, partitions: int, **configs: str) -> None:
        replicas = [[*NODES[index:], *NODES[:index]] for index in range(partitions)]
        self.cluster.controller.create_topic(topic, *replicas, **configs)
        self._kept = [*getattr(self, "_kept", []), *(TopicPartition(topic, index) for index in range(partitions))]

    def run(self, faults: int) -> None:
        moves = [self._move_something, self._replace_coordinator, self._replace_coordinator]
        for _ in range(faults):
            self.chance.choice((self._kill, self._cut, *moves))()
            self.cluster.clock.advance_ms(self.chance.randrange(200, 4000))

    def _move_something(self) -> None:
        self._move(*self.chance.choice(self._kept))

    def _replace_coordinator(self) -> None:
        """Its markers arrive late, when another one has taken its place and the next transactions are open."""
        where = TopicPartition(TRANSACTION_STATE_TOPIC, self.chance.randrange(2))
        coordinator = self.cluster.leader(*where)
        self.cluster.lag_ms[coordinator, "markers"] = self.chance.randrange(200, 2000)
        self.cluster.clock.advance_ms(self.chance.randrange(50, 300))
        del self.cluster.lag_ms[coordinator, "markers"]
        self._move(*where)

    def settle(self) -> None:
        super().settle()
        cluster = self.cluster
        for partition in self._kept:
            cluster.until(lambda where=partition: sorted(cluster.isr(*where)) == list(NODES), within_ms=120_000)  # type: ignore[misc]
        clients = (*self.writers, self.member)
        for client in clients:
            client.is_stopping = True
        cluster.until(lambda: all(client.is_idle for client in clients), within_ms=120_000)
        for partition in self.written:
            cluster.until(lambda where=partition: self._is_decided(where), within_ms=60_000)  # type: ignore[misc]
            cluster.until(lambda where=partition: len({self._bytes(n, where) for n in NODES}) == 1, within_ms=60_000)  # type: ignore[misc]

    def _is_decided(self, where: TopicPartition) -> bool:
        partition = self.cluster.nodes[self.cluster.leader(*where)].running.partitions.opened(*where)
        return partition is not None and partition.last_stable_offset == partition.log_end_offset

    def _bytes(self, node: int, where: TopicPartition) -> bytes:
        partition = self.cluster.nodes[node].running.partitions.opened(*where)
        if partition is None:
            return b"not open"
        return b"".join(segment.log_file.path.read_bytes() for segment in partition.log.segments)

    def found(self, where: TopicPartition) -> Found:
        data = self._bytes(1, where)
        found = Found([], [], {})
        is_open: dict[int, list[str]] = {}
        for position, header in iter_headers(data):
            if header.is_control:
                marker = parse_control(data, position)
                values = is_open.pop(header.producer_id, [])
                (found.committed if marker.is_commit else found.aborted).extend(values)
                found.coordinator_epochs.setdefault(header.producer_id, []).append(marker.coordinator_epoch)
            else:
                values = [(record.value or b"").decode() for record in decode_records(data, position)]
                is_open.setdefault(header.producer_id, []).extend(values)
        assert is_open == {}
        return found

    def check(self) -> None:
        found = {where: self.found(where) for where in self.written}
        committed = [value for writer in self.writers for value in writer.committed]
        aborted = {value for writer in self.writers for value in writer.aborted}
        for where, seen in found.items():
            counts = Counter(seen.committed)
            assert {value: counts[value] for value in committed} == dict.fromkeys(committed, 1), where
            assert set(counts.values()) == {1}, where
            assert not aborted & set(seen.committed), where
            assert not set(seen.committed) & set(seen.aborted), where
            for producer_id, epochs in seen.coordinator_epochs.items():
                assert epochs == sorted(epochs), f"{where}: producer {producer_id} has markers of {epochs}"
        assert len({frozenset(seen.committed) for seen in found.values()}) == 1, "a transaction is torn"


@pytest.mark.parametrize("seed", range(2))
def test_transactions_have_one_outcome_whoever_coordinates_them(tmp_path: Path, seed: int) -> None:
    history = TransactionalHistory(tmp_path, seed)
    history.run(faults=12)
    history.settle()
    history.check()
    assert sum(len(writer.committed) for writer in history.writers) > 40
    assert history.member.rounds > 10
