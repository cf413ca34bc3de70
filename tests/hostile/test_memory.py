"""Whatever clients do with their connections, a broker stays within its memory budget; files do not stop its loop."""

from __future__ import annotations

import contextlib
import selectors
import struct
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from tests.hostile.amplification import FEW, MIB
from tests.hostile.measured_broker import MeasuredBroker, measured_broker
from tests.hostile.play import ATTEMPTS
from tests.hostile.wire import ANSWER_TIMEOUT_S, Client, frame_of, request_of
from tests.unit.server.harness import batch_of

BUDGET_BYTES = 32 * MIB
OVERHEAD_BYTES = 64 * MIB
"""Buffers of the connections, and what the allocator keeps."""
DEFAULT_BUDGET_BYTES = 512 * MIB
CLIENTS = 60
JOINS = 500
UNREAD_BYTES = 5 * MIB
"""More than the kernel takes with the usual settings of Linux, and not much more."""
LARGE_CLIENTS = 240
PARTITIONS = 10_000
TRANSACTION_PARTITIONS = 5_000
STRETCH_S_MAX = 0.05
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has spent")


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    settings = {**FEW, "oncelog.connections.max.bytes": BUDGET_BYTES}
    with measured_broker(tmp_path_factory.mktemp("memory"), settings) as broker:
        yield broker


def ask(broker: MeasuredBroker, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
    with contextlib.closing(Client(broker.bootstrap_servers, tls=broker.tls)) as client:
        return client.ask(request_of(api, values), version)[0]


def create(broker: MeasuredBroker, topic: str, partitions: int) -> None:
    topics = [{"name": topic, "num_partitions": partitions, "replication_factor": 1}]
    ask(broker, ApiKey.CREATE_TOPICS, 7, {"topics": topics})


def produce(broker: MeasuredBroker, value: bytes) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch_of([value], timestamp_ms=1)}]}]
    ask(broker, ApiKey.PRODUCE, 9, {"acks": 1, "timeout_ms": 1_000, "topic_data": data})


def as_answered(clients: list[Client]) -> Iterator[Client]:
    """In the order of their answers, which is the broker's choice."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        while ready := selector.select(ANSWER_TIMEOUT_S):
            for key, _ in ready:
                selector.unregister(key.fileobj)
                yield key.data
    raise TimeoutError("no further answer")


def grown_bytes_at_most(broker: MeasuredBroker, before_bytes: int, seconds: float) -> int:
    """The most that the process grew within this time."""
    end_s, most_bytes = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        most_bytes = max(most_bytes, broker.cost().memory_bytes - before_bytes)
        time.sleep(0.05)
    return most_bytes


def test_many_requests_behind_one_that_waits(broker: MeasuredBroker) -> None:
    """Each of 14 bytes, and of some hundreds as an object."""
    create(broker, "t", 1)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MIB}
    wanted = {"max_wait_ms": 60_000, "min_bytes": MIB, "topics": [{"topic": "t", "partitions": [partition]}]}
    small = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)
    data = frame_of(request_of(ApiKey.FETCH, wanted), 11) + small * 4_000
    before_bytes = broker.cost().memory_bytes
    with contextlib.ExitStack() as clients:
        for _ in range(CLIENTS):
            clients.enter_context(contextlib.closing(Client(broker.bootstrap_servers))).send(data)
        assert grown_bytes_at_most(broker, before_bytes, 2) < CLIENTS * 300_000


def test_joins_whose_clients_have_gone(broker: MeasuredBroker) -> None:
    """They wait for a member that does not come back, and keep no buffers of their connections."""
    values = {"group_id": "g", "session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000,
              "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
    ask(broker, ApiKey.JOIN_GROUP, 3, values)
    join = frame_of(request_of(ApiKey.JOIN_GROUP, values), 3)
    before_bytes = broker.cost().memory_bytes
    for _ in range(JOINS):
        with contextlib.closing(Client(broker.bootstrap_servers)) as client:
            client.send(join)
    while len(ask(broker, ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]}).groups[0].members) <= JOINS:
        time.sleep(0.1)
    assert broker.cost().memory_bytes - before_bytes < JOINS * 20_000 + 4 * MIB


def test_clients_that_read_nothing(broker: MeasuredBroker) -> None:
    create(broker, "t", 1)
    for _ in range(40):
        produce(broker, bytes(900_000))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 31 * MIB}
    fetch = request_of(
        ApiKey.FETCH,
        {"max_bytes": 31 * MIB, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [partition]}]},
    )
    before_bytes = broker.cost().memory_bytes
    with contextlib.ExitStack() as clients:
        for _ in range(CLIENTS):
            client = clients.enter_context(contextlib.closing(Client(broker.bootstrap_servers)))
            client.send(frame_of(fetch, 11))
        assert grown_bytes_at_most(broker, before_bytes, 2) < BUDGET_BYTES + OVERHEAD_BYTES
        Client(broker.bootstrap_servers).ask(ApiVersionsRequest(), 0)
        produce(broker, b"somebody else is served")


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_clients_that_take_most_of_an_answer(tmp_path_factory: pytest.TempPathFactory, has_tls: bool) -> None:
    """The kernel takes some megabytes for whoever reads nothing: what the broker keeps of the answer is the rest."""
    settings = {**FEW, "oncelog.connections.max.bytes": BUDGET_BYTES, "message.max.bytes": 16 * MIB}
    folder = tmp_path_factory.mktemp("unread")
    with measured_broker(folder, settings, has_tls=has_tls) as broker, contextlib.ExitStack() as clients:
        create(broker, "t", 1)
        produce(broker, bytes(UNREAD_BYTES))
        wanted = [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]}]
        fetch = request_of(ApiKey.FETCH, {"max_bytes": 1, "min_bytes": 1, "topics": wanted})
        before_bytes = broker.cost().memory_bytes
        broker.forget_peak_memory()
        for _ in range(CLIENTS):
            client = clients.enter_context(contextlib.closing(Client(broker.bootstrap_servers, tls=broker.tls)))
            client.send(frame_of(fetch, 11))
        ask(broker, ApiKey.METADATA, 12, {"topics": None})
        grown_bytes = broker.peak_memory_bytes() - before_bytes
        assert grown_bytes < BUDGET_BYTES + OVERHEAD_BYTES


def test_clients_that_send_half_of_their_requests(broker: MeasuredBroker) -> None:
    create(broker, "t", 1)
    before_bytes = broker.cost().memory_bytes
    with contextlib.ExitStack() as clients:
        for _ in range(CLIENTS // 4):
            client = clients.enter_context(contextlib.closing(Client(broker.bootstrap_servers, timeout_s=0.2)))
            with contextlib.suppress(OSError):  # it is made to wait, or closed
                client.send(struct.pack(">i", 50 * MIB) + bytes(20 * MIB))
        assert grown_bytes_at_most(broker, before_bytes, 2) < 2 * BUDGET_BYTES + OVERHEAD_BYTES
        produce(broker, b"somebody else is served")


def test_many_clients_with_a_large_request_each(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Numbers of four bytes, which take ten times as much as objects, and thirty as an answer."""
    topics = [{"name": "nowhere", "partition_indexes": list(range(199_000))}]
    request = request_of(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": "g", "topics": topics}]})
    frame = frame_of(request, 8)
    with measured_broker(tmp_path_factory.mktemp("large"), FEW) as broker, contextlib.ExitStack() as open_clients:
        ask(broker, ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        before_bytes = broker.cost().memory_bytes
        broker.forget_peak_memory()
        clients = [
            open_clients.enter_context(contextlib.closing(Client(broker.bootstrap_servers)))
            for _ in range(LARGE_CLIENTS)
        ]
        for client in clients:
            client.send(frame)
        for client in islice(as_answered(clients), LARGE_CLIENTS // 8):
            client.receive()
        assert broker.peak_memory_bytes() - before_bytes < DEFAULT_BUDGET_BYTES + OVERHEAD_BYTES
        ask(broker, ApiKey.METADATA, 12, {"topics": None})


def test_a_transaction_over_many_partitions(broker: MeasuredBroker) -> None:
    create(broker, "wide", TRANSACTION_PARTITIONS)
    stretches_s = []
    for _ in range(ATTEMPTS):
        init = ask(broker, ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": "id", "transaction_timeout_ms": 60_000,
                                                       "producer_id": -1, "producer_epoch": -1})  # fmt: skip
        producer = {"transactional_id": "id", "producer_id": init.producer_id, "producer_epoch": init.producer_epoch}
        added = {f"v3_and_below_{name}": value for name, value in producer.items()}
        added["v3_and_below_topics"] = [{"name": "wide", "partitions": list(range(TRANSACTION_PARTITIONS))}]
        ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
        broker.take_longest_stretch_s()
        assert ask(broker, ApiKey.END_TXN, 3, {**producer, "committed": True}).error_code == 0
        await_end_of_transaction(broker)
        stretches_s.append(broker.take_longest_stretch_s())
        if stretches_s[-1] < STRETCH_S_MAX:
            break
    assert min(stretches_s) < STRETCH_S_MAX, stretches_s


def await_end_of_transaction(broker: MeasuredBroker) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        states = ask(broker, ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["id"]}).transaction_states
        if states[0].transaction_state == "CompleteCommit":
            return
        assert time.monotonic() < deadline_s, states
        time.sleep(0.01)


def test_making_and_deleting_many_partitions(broker: MeasuredBroker) -> None:
    stretches_s: dict[str, list[float]] = {"made": [], "grown": [], "deleted": []}
    for number in range(ATTEMPTS):
        broker.take_longest_stretch_s()
        create(broker, f"gone-{number}", PARTITIONS)
        stretches_s["made"].append(broker.take_longest_stretch_s())
        grown = [{"name": f"gone-{number}", "count": 2 * PARTITIONS, "assignments": None}]
        ask(broker, ApiKey.CREATE_PARTITIONS, 3, {"topics": grown, "timeout_ms": 60_000})
        stretches_s["grown"].append(broker.take_longest_stretch_s())
        offsets = [{"partition_index": index, "timestamp": -1} for index in range(PARTITIONS)]
        wanted = {"replica_id": -1, "topics": [{"name": f"gone-{number}", "partitions": offsets}]}
        ask(broker, ApiKey.LIST_OFFSETS, 7, wanted)
        broker.take_longest_stretch_s()
        ask(broker, ApiKey.DELETE_TOPICS, 5, {"topic_names": [f"gone-{number}"], "timeout_ms": 60_000})
        stretches_s["deleted"].append(broker.take_longest_stretch_s())
        if all(min(attempts_s) < STRETCH_S_MAX for attempts_s in stretches_s.values()):
            break
    assert all(min(attempts_s) < STRETCH_S_MAX for attempts_s in stretches_s.values()), stretches_s
