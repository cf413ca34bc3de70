"""Where requests go, and when they are repeated: on a network without sockets, in a time of its own."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from oncelog.client.cluster import Cluster
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError, TimedOut, error_of
from oncelog.client.routes import CoordinatorKind, Routes
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import Message
from tests.unit.client.scripted_network import CONFIG, ScriptedNetwork, run

T0 = TopicPartition("t", 0)
TXN = CoordinatorKind.TRANSACTION


def metadata(leader: int = 1, code: int = 0, partitions: int = 2, nodes: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node, host=f"b{node}", port=node) for node in nodes],
        controller_id=2,
        topics=[
            MetadataResponseTopic(
                name="t",
                error_code=code,
                partitions=[
                    MetadataResponsePartition(partition_index=number, leader_id=leader)
                    for number in reversed(range(partitions))
                ],
            )
        ],
    )


# Routes


def test_leaders_are_those_of_the_last_answer_until_they_are_forgotten() -> None:
    routes = Routes()
    assert routes.leader(T0) is None
    assert routes.learn(metadata(leader=2), 0.0) == []
    known = routes.leader(T0)
    assert known is not None
    assert (known.node_id, known.host) == (2, "b2")
    assert routes.leader(TopicPartition("t", 2)) is None, "there are two partitions"
    routes.forget_leader(T0)
    assert routes.leader(T0) is None
    assert routes.leader(TopicPartition("t", 1)) is not None
    routes.learn(metadata(leader=1), 0.0)
    assert routes.leader(T0) == (1, "b1", 1, None)


def test_a_leader_that_is_no_broker_of_the_cluster_is_none() -> None:
    routes = Routes()
    routes.learn(metadata(leader=7), 0.0)
    assert routes.leader(T0) is None
    routes.learn(metadata(leader=-1), 0.0)
    assert routes.leader(T0) is None


def test_a_topic_that_is_gone_is_forgotten_and_told() -> None:
    routes = Routes()
    routes.learn(metadata(), 0.0)
    (failure,) = routes.learn(metadata(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0.0)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert routes.topics == {}


def test_what_is_known_of_a_topic_grows_old() -> None:
    routes = Routes()
    routes.learn(metadata(), 10.0)
    found = routes.fresh_topic("t", 14.9, 5_000)
    assert found is not None
    assert [partition.partition for partition in found.partitions] == [0, 1]
    assert routes.fresh_topic("t", 15.0, 5_000) is None
    assert routes.fresh_topic("other", 10.0, 5_000) is None


def test_known_brokers_are_asked_before_the_first_addresses() -> None:
    routes = Routes()
    assert routes.addresses([("boot", 1)], random.Random(1)) == [("boot", 1)]
    routes.learn(metadata(), 0.0)
    addresses = routes.addresses([("boot", 1), ("b1", 1)], random.Random(1))
    assert sorted(addresses[:2]) == [("b1", 1), ("b2", 2)]
    assert addresses[2:] == [("boot", 1)]


# Pauses


def test_pauses_double_up_to_the_longest_and_short_ones_are_counted_apart() -> None:
    backoff = Backoff(100, 400, random.Random(1))
    soon = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "")
    for low_ms in (100, 200, 400, 400):
        assert 0.8 * low_ms <= backoff.next_ms() <= 1.2 * low_ms
    for low_ms in (2, 4, 8, 16, 32, 50, 50):
        assert 0.8 * low_ms <= backoff.next_ms(soon) <= 1.2 * low_ms
    backoff.reset()
    assert backoff.next_ms() <= 120


# Requests


class Brokers:
    """Two brokers; the coordinator is the second one, and EndTxn gets the codes of a list."""

    def __init__(self, codes: list[int] | None = None) -> None:
        self.codes = codes or []
        self.failures: list[Exception] = []
        self.leaders = [1]
        self.network = ScriptedNetwork(self.answer)
        self.cluster = Cluster(CONFIG, self.network)

    def answer(self, address: str, request: Message) -> Message | Exception:
        if isinstance(request, MetadataRequest):
            return metadata(leader=self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0])
        if isinstance(request, FindCoordinatorRequest):
            return FindCoordinatorResponse(coordinators=[Coordinator(key="id", node_id=2, host="b2", port=2)])
        if self.failures:
            return self.failures.pop(0)
        return EndTxnResponse(error_code=self.codes.pop(0) if self.codes else 0)

    def end(self, **options: Any) -> EndTxnResponse:
        asking = self.cluster.ask_coordinator(
            TXN,
            "id",
            EndTxnRequest(transactional_id="id"),
            EndTxnResponse,
            codes=lambda answer: [answer.error_code],
            retry=[ErrorCode.CONCURRENT_TRANSACTIONS],
            **options,
        )
        return run(asking)


@pytest.mark.parametrize(("code", "lookups"), [(14, 1), (15, 3), (16, 3), (51, 1)])
def test_a_coordinator_that_is_not_ready_is_asked_again_and_one_that_moved_is_looked_for(
    code: int, lookups: int
) -> None:
    brokers = Brokers([code, code])
    assert brokers.end().error_code == 0
    assert brokers.network.count("FindCoordinatorRequest") == lookups
    assert len(brokers.network.pauses_ms) == 2
    assert (brokers.network.pauses_ms[0] < 10) == (code == ErrorCode.CONCURRENT_TRANSACTIONS)


def test_a_lost_answer_is_asked_for_again_from_a_coordinator_that_is_looked_for() -> None:
    brokers = Brokers()
    brokers.failures = [ConnectionLost("gone")]
    assert brokers.end().error_code == 0
    assert brokers.network.count("EndTxnRequest") == 2
    assert brokers.network.count("FindCoordinatorRequest") == 2


def test_other_codes_are_the_callers_to_judge() -> None:
    brokers = Brokers([ErrorCode.PRODUCER_FENCED])
    assert brokers.end().error_code == ErrorCode.PRODUCER_FENCED
    assert brokers.network.pauses_ms == []


def test_a_call_ends_at_its_deadline_and_names_the_last_failure() -> None:
    brokers = Brokers([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000)
    began_s = brokers.network.time_s
    with pytest.raises(TimedOut, match="COORDINATOR_LOAD_IN_PROGRESS"):
        brokers.end(deadline=brokers.cluster.deadline(5_000))
    assert brokers.network.time_s - began_s == pytest.approx(5, abs=0.1)
    assert brokers.network.count("EndTxnRequest") < 12


def test_an_error_that_a_repetition_does_not_mend_is_raised_at_once() -> None:
    cluster = Brokers().cluster

    async def refused() -> None:
        raise error_of(ErrorCode.INVALID_TOPIC_EXCEPTION, "no")

    with pytest.raises(KafkaError, match="no"):
        run(cluster.retrying("this", refused, cluster.deadline()))


def test_a_partition_without_a_leader_is_asked_for_until_it_has_one() -> None:
    brokers = Brokers()
    brokers.leaders = [-1, -1, 2]
    connection = run(brokers.cluster.leader(T0, brokers.cluster.deadline()))
    assert str(connection) == "b2"
    assert brokers.network.count("MetadataRequest") == 3
    assert run(brokers.cluster.leader_id(T0, brokers.cluster.deadline())) == 2
    assert brokers.network.count("MetadataRequest") == 3, "what is known is not asked for"


def test_a_leader_that_cannot_be_reached_is_looked_for_again() -> None:
    brokers = Brokers()
    brokers.network.down = {"b1"}
    brokers.leaders = [1, 1, 2]
    assert str(run(brokers.cluster.leader(T0, brokers.cluster.deadline()))) == "b2"


def test_no_broker_at_all_ends_in_a_timeout_that_names_the_addresses() -> None:
    network = ScriptedNetwork(lambda address, request: ConnectionLost("never asked"))
    network.down = {"boot"}
    cluster = Cluster(replace(CONFIG, default_api_timeout_ms=3_000), network)
    with pytest.raises(TimedOut, match=r"no broker of boot:1 answers: cannot connect to boot"):
        run(cluster.refresh(None, cluster.deadline()))
    assert network.time_s == pytest.approx(1003, abs=0.01)


def test_a_deadline_is_a_moment_of_the_clock_it_is_given() -> None:
    now = [5.0]
    deadline = Deadline(2_000, lambda: now[0])
    assert deadline.remaining_ms == 2_000
    now[0] = 7.0
    assert deadline.expired
    assert deadline.remaining_ms == 0
