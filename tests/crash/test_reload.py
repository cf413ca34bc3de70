"""Groups that commit all the time leave little to load. The long form, with a million commits, is `commits`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from oncelog.server.cleaning import INTERNAL_ACTIVE_BYTES
from oncelog.testing import BrokerProcess
from tests.crash.commits import TOPIC, commit_many, stored_bytes, time_reload
from tests.crash.killer import create

pytestmark = pytest.mark.crash

COMMITS = 40_000
RELOAD_S_MAX = 3.0
"""Alone on its machine it takes a quarter of that; tests are seldom alone."""


def test_a_broker_answers_for_all_its_groups_soon_after_a_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        create(broker, TOPIC, {})
        commit_many(broker.bootstrap_servers, COMMITS)
        bound = 3 * INTERNAL_ACTIVE_BYTES // 2
        deadline_s = time.monotonic() + 60
        while stored_bytes(broker.data_dir) > bound and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert stored_bytes(broker.data_dir) <= bound, "the logs of the groups are not rolled and cleaned in time"
        broker.kill()
        assert time_reload(broker, COMMITS).answered_s < RELOAD_S_MAX
        broker.stop()
        assert time_reload(broker, COMMITS).answered_s < RELOAD_S_MAX
    finally:
        broker.stop()
