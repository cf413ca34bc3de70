"""Groups that commit all the time leave little to load. The long form, with a million commits, is `commits`."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.server.cleaning import INTERNAL_ACTIVE_BYTES
from oncelog.testing import BrokerProcess
from tests.crash.commits import TOPIC, commit_many, stored_bytes, time_reload
from tests.crash.killer import create
from tests.waiting import wait_until

pytestmark = pytest.mark.crash

COMMITS = 60_000
"""A quarter more than the cleaner leaves alone."""
RELOAD_CPU_S_MAX = 3.0
"""It takes a sixth of that."""


def test_a_broker_answers_for_all_its_groups_soon_after_a_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        create(broker, TOPIC, {})
        commit_many(broker.bootstrap_servers, COMMITS)
        broker.kill()
        assert time_reload(broker, COMMITS).cpu_s < RELOAD_CPU_S_MAX
        # The logs of groups are cleaned.
        wait_until(lambda: stored_bytes(broker.data_dir) <= INTERNAL_ACTIVE_BYTES)
        broker.stop()
        assert time_reload(broker, COMMITS).cpu_s < RELOAD_CPU_S_MAX
    finally:
        broker.stop()
