"""Frames of every API and version, with bytes changed: the broker answers or closes, and has no fault to report.

ONCELOG_FUZZ_SECONDS is how long, ONCELOG_FUZZ_SEED where it begins; `make test-hostile` takes minutes.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator

import pytest

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.server import handlers
from oncelog.server.controller_front import NEEDED
from tests.hostile.amplification import FEW, MIB, WITH_ACLS
from tests.hostile.controller_rows import CONTROLLER
from tests.hostile.fuzzer import play
from tests.hostile.measured_broker import MeasuredBroker, measured_broker
from tests.hostile.wire import Client, request_of

SECONDS = float(os.environ.get("ONCELOG_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("ONCELOG_FUZZ_SEED", "1"))
MEMORY_BYTES_MAX = 128 * MIB
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has spent")


@pytest.fixture(params=[FEW, WITH_ACLS], ids=["open", "acls"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[MeasuredBroker]:
    # Settings that frames may change by luck, and that would end the test or take its time.
    kept = {"max.connections": 1_000, "connection.failed.authentication.delay.ms": 0, "oncelog.partitions.max": 2_000}
    with measured_broker(tmp_path_factory.mktemp("fuzz"), {**request.param, **kept}) as broker:
        yield broker


def test_changed_frames(broker: MeasuredBroker) -> None:
    served = {ApiKey(int(module.name[1:3])) for module in pkgutil.iter_modules(handlers.__path__)}
    topics = [{"name": "t", "num_partitions": 4, "replication_factor": 1}]
    Client(broker.bootstrap_servers).ask(request_of(ApiKey.CREATE_TOPICS, {"topics": topics}), 7)
    check_changed_frames(broker, served)


def test_changed_frames_for_a_controller(tmp_path_factory: pytest.TempPathFactory) -> None:
    with measured_broker(tmp_path_factory.mktemp("fuzz"), CONTROLLER) as controller:
        check_changed_frames(controller, NEEDED.keys())


def check_changed_frames(broker: MeasuredBroker, served: Iterable[ApiKey]) -> None:
    before = broker.cost()
    outcomes = play(broker.bootstrap_servers, SEED, SECONDS, {key: (key.first, key.last) for key in sorted(served)})
    assert broker.running, "the broker has ended"
    Client(broker.bootstrap_servers).ask(ApiVersionsRequest(), 0)
    log = broker.log_path.read_text(errors="replace")
    told = f"with ONCELOG_FUZZ_SEED={SEED}, after {outcomes.total()} frames: {log[-4000:]}"
    assert "Traceback" not in log, told
    assert (broker.cost() - before).memory_bytes < MEMORY_BYTES_MAX, told
    assert outcomes["answered"] > outcomes.total() // 20, outcomes
    assert outcomes["closed"], outcomes
