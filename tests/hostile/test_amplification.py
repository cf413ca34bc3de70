"""What requests of the table cost a broker, measured in its process."""

from __future__ import annotations

import contextlib
import pkgutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.schema import Message
from oncelog.server import handlers
from oncelog.server.metrics_port import CONNECTIONS_MAX
from oncelog.testing import BrokerProcess
from peers.kafka.kafka import free_port
from tests.hostile.amplification import ROWS, SETTINGS, WITHOUT_ROW, Row
from tests.hostile.measured_broker import Attacker, Bystander, cost_of

BYSTANDER_P99_S_MAX = 5.0
"""Against a loop that stands still; how long it is on a machine that has nothing else to do is recorded."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has spent")


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    process = BrokerProcess(folder / "data", {**SETTINGS, "oncelog.metrics.port": metrics_port}).start()
    yield process
    process.stop()


def codes_in(message: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(message, list):
        return {code for each in message for code in codes_in(each)}
    if not isinstance(message, Message):
        return set()
    found = {getattr(message, name) for name in message.FIELDS if name == "error_code"}
    return found.union(*(codes_in(getattr(message, name)) for name in message.FIELDS))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_what_a_request_costs(broker: BrokerProcess, row: Row, record_property: Callable[[str, object], None]) -> None:
    attacker = Attacker(broker)
    attacker.ask(ApiVersionsRequest(), 0)
    before = cost_of(broker)
    codes: set[int] = set()
    largest_bytes = 0
    with Bystander(broker) as bystander:
        for number in range(row.count):
            answer, size = attacker.ask(row.request(number), row.version)
            codes |= codes_in(answer)
            largest_bytes = max(largest_bytes, size)
    cost = cost_of(broker) - before
    record_property("bystander_p99_ms", round(bystander.p99_s() * 1000, 1))
    attacker.close()
    told = f"{attacker.sent_bytes:,} bytes cost {cost}, the largest answer has {largest_bytes:,} bytes, codes {codes}"
    assert cost.cpu_s <= row.cpu_s_max, told
    assert cost.memory_bytes <= row.memory_bytes_max, told
    assert cost.log_bytes <= row.log_bytes_max, told
    assert largest_bytes <= row.answer_bytes_max, told
    assert row.codes <= codes, told
    assert bystander.p99_s() < BYSTANDER_P99_S_MAX, told


def test_slow_clients_of_the_metrics_port(broker: BrokerProcess, metrics_port: int) -> None:
    before = cost_of(broker)
    with contextlib.ExitStack() as clients:
        for _ in range(400):
            slow = clients.enter_context(socket.create_connection(("127.0.0.1", metrics_port), timeout=30))
            with contextlib.suppress(OSError):
                slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        Attacker(broker).ask(ApiVersionsRequest(), 0)
        deadline_s = time.monotonic() + 30
        while (cost_of(broker) - before).descriptors > CONNECTIONS_MAX + 10:
            assert time.monotonic() < deadline_s, cost_of(broker) - before
            time.sleep(0.05)


def test_every_api_is_in_the_table_or_known_not_to_be() -> None:
    attacked = {row.api for row in ROWS}
    assert not attacked & WITHOUT_ROW
    served = {ApiKey(int(module.name[1:3])) for module in pkgutil.iter_modules(handlers.__path__)}
    assert served == attacked | WITHOUT_ROW
