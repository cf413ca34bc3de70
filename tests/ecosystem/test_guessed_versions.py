"""Which version of Kafka other people's software takes the broker for, from the requests that it serves.

Nobody guesses 4.3 who asks for everything that 4.3 has: share groups and streams groups are not there.
"""

from __future__ import annotations

import subprocess

from oncelog.testing import BrokerProcess
from tests.ecosystem import toolchains
from tests.ecosystem.test_ecosystem import WAIT_S, available, pytestmark, running

__all__ = ["pytestmark", "running"]


def test_franz_go(running: BrokerProcess) -> None:
    command = available(lambda: toolchains.go_program("guess"))
    done = subprocess.run([*command, running.bootstrap_servers], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "at least v3.9\n", done.stderr
