"""What requests of the table cost a broker, measured in its process."""

from __future__ import annotations

import contextlib
import pkgutil
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as ConfluentError

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.server import handlers
from oncelog.server.controller_front import NEEDED
from oncelog.server.forwarding import FORWARDED
from oncelog.server.metrics_port import CONNECTIONS_MAX
from peers.kafka.kafka import free_port
from tests.hostile.aborted_log import ABORTED_TOPIC, COMMITTED, write_aborted_log
from tests.hostile.amplification import MIB, OPEN, ROWS, WITH_ACLS, Row
from tests.hostile.batch_rows import BATCH_ROWS
from tests.hostile.controller_rows import CONTROLLER, CONTROLLER_ROWS
from tests.hostile.measured_broker import measured_broker
from tests.hostile.play import Attacked, beside, is_within, make_topics, play_until_within
from tests.hostile.wire import Client

MEMORY_BYTES_MAX = 1 << 30
"""The most that a broker with the default budgets may take, whatever clients do."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has spent")


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Attacked]:
    settings, folder = {**OPEN, "oncelog.metrics.port": metrics_port}, tmp_path_factory.mktemp("hostile")
    write_aborted_log(folder / "data")
    with measured_broker(folder, settings) as broker, beside(broker) as attacked:
        make_topics(attacked, (row for row in (*ROWS, *BATCH_ROWS) if not row.acls))
        yield attacked


@pytest.fixture(scope="module")
def broker_with_acls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with measured_broker(tmp_path_factory.mktemp("hostile"), WITH_ACLS) as broker, beside(broker) as attacked:
        yield attacked


@pytest.mark.parametrize(
    "row", [*ROWS, *BATCH_ROWS], ids=lambda row: f"{row.api.name.lower()}-{row.name.replace(' ', '-')}"
)
def test_what_a_request_costs(
    request: pytest.FixtureRequest, row: Row, record_property: Callable[[str, object], None]
) -> None:
    attacked = request.getfixturevalue("broker_with_acls" if row.acls else "open_broker")
    outcomes = play_until_within(attacked, row)
    record_property("bystander_p99_ms", round(min(outcome.waits.p99_s for outcome in outcomes) * 1000, 1))
    record_property("bystander_cpu_p99_ms", round(min(outcome.waits.cpu_p99_s for outcome in outcomes) * 1000, 1))
    record_property("stretch_ms", round(min(outcome.stretch_s for outcome in outcomes) * 1000, 1))
    assert is_within(row, outcomes[-1]), outcomes
    assert row.codes <= {ErrorCode(code) for outcome in outcomes for code in outcome.codes}, outcomes


def test_what_readers_see_among_many_aborted_transactions(open_broker: Attacked) -> None:
    consumer = Consumer(
        {"bootstrap.servers": open_broker.broker.bootstrap_servers, "group.id": "readers",
         "isolation.level": "read_committed", "fetch.message.max.bytes": 50 * MIB, "fetch.max.bytes": 50 * MIB,
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(ABORTED_TOPIC, 0, 0)])
    seen: list[tuple[bytes, bytes]] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        seen.append((message.value(), b"%d" % message.offset()))
    assert message is not None
    assert message.error().code() == ConfluentError._PARTITION_EOF
    consumer.close()
    assert len(seen) == COMMITTED
    assert all(value == offset for value, offset in seen)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with measured_broker(tmp_path_factory.mktemp("controller"), CONTROLLER) as process, beside(process) as attacked:
        yield attacked


@pytest.mark.parametrize("row", CONTROLLER_ROWS, ids=lambda row: f"{row.api.name.lower()}-{row.name.replace(' ', '-')}")
def test_what_a_request_costs_a_controller(controller: Attacked, row: Row) -> None:
    outcomes = play_until_within(controller, row)
    assert is_within(row, outcomes[-1]), outcomes
    assert row.codes <= {ErrorCode(code) for outcome in outcomes for code in outcome.codes}, outcomes


def test_memory_after_all_of_them(open_broker: Attacked, broker_with_acls: Attacked) -> None:
    for attacked in (open_broker, broker_with_acls):
        assert attacked.broker.peak_memory_bytes() < MEMORY_BYTES_MAX


def test_slow_clients_of_the_metrics_port(open_broker: Attacked, metrics_port: int) -> None:
    broker = open_broker.broker
    before = broker.cost()
    with contextlib.ExitStack() as clients:
        for _ in range(400):
            slow = clients.enter_context(socket.create_connection(("127.0.0.1", metrics_port), timeout=30))
            with contextlib.suppress(OSError):
                slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        Client(broker.bootstrap_servers).ask(ApiVersionsRequest(), 0)
        deadline_s = time.monotonic() + 30
        while (broker.cost() - before).descriptors > CONNECTIONS_MAX + 10:
            assert time.monotonic() < deadline_s, broker.cost() - before
            time.sleep(0.05)


def test_every_api_is_in_the_table() -> None:
    served = {ApiKey(int(module.name[1:3])) for module in pkgutil.iter_modules(handlers.__path__)}
    assert served | {ApiKey(key) for key in FORWARDED} == {row.api for row in ROWS}
    assert NEEDED.keys() == {row.api for row in CONTROLLER_ROWS}
