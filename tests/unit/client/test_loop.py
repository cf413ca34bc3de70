"""The background loop of blocking clients."""

from __future__ import annotations

import subprocess
import sys

_LEFT_OPEN = """
from oncelog.client import Producer

def generator():
    with Producer({"bootstrap.servers": "127.0.0.1:1"}) as producer:
        yield producer

left = generator()
next(left)
"""


def test_a_client_that_is_closed_by_the_end_of_the_interpreter_does_not_wait_for_ever() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT_OPEN], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "close it before" in done.stderr
