"""Which version of Kafka other people's software takes the broker for, from the requests that it serves.

Nobody guesses 4.3 who asks for everything that 4.3 has: share groups and streams groups are not there.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from oncelog.testing import BrokerProcess
from tests.ecosystem import toolchains
from tests.ecosystem.test_ecosystem import available, running

__all__ = ["running"]

pytestmark = pytest.mark.skipif(
    not os.environ.get("ONCELOG_ECOSYSTEM"), reason="other people's software is fetched by `make test-ecosystem`"
)


def test_franz_go(running: BrokerProcess) -> None:
    command = available(lambda: toolchains.go_program("guess"))
    done = subprocess.run([*command, running.bootstrap_servers], capture_output=True, text=True, timeout=120)
    assert done.stdout == "at least v3.9\n", done.stderr
