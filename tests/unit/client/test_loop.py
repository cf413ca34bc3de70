"""The background loop of blocking clients."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oncelog.client import Admin, OffsetSpec, TopicPartition

_LEFT_OPEN = """
from oncelog.client import Producer

def generator():
    with Producer({"bootstrap.servers": "127.0.0.1:1"}) as producer:
        yield producer

left = generator()
next(left)
"""

_STILL_WAITING = """
import ctypes, sys, time
from oncelog.client import loop

# What libraries do behind the interpreter's end takes its time: here six seconds, which is the exit code.
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
at_work = loop.background().loop
at_work.call_soon_threadsafe(at_work.call_later, 3, print, "late")
time.sleep(0.2)
sys.exit(6)
"""

_LOGGING = """
import logging, sys
from oncelog.client import Producer

class ToTopic(logging.Handler):
    def __init__(self):
        super().__init__()
        self.producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 60_000})

    def emit(self, record):
        self.producer.send(sys.argv[2], record.getMessage())

    def close(self):
        self.producer.close()
        super().close()

logging.getLogger().addHandler(ToTopic())
logging.warning("the last words")
"""


def test_what_is_closed_by_an_older_handler_of_the_end_is_delivered(
    servers: str, topic: str, module_admin: Admin
) -> None:
    """Python shuts logging down behind the client: it was imported before."""
    command = [sys.executable, "-c", _LOGGING, servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    places = [TopicPartition(topic, number) for number in range(2)]
    ends = module_admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
    assert sum(found.offset for found in ends.values()) == 1


def test_a_client_that_is_closed_by_the_end_of_the_interpreter_does_not_wait_for_ever() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT_OPEN], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0
    assert "close it before" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has on_exit")
def test_what_is_due_after_the_end_of_the_interpreter_does_not_crash_the_process() -> None:
    """An answer, a timer, a connection that the broker closes: the thread of the loop must not wake up for it."""
    done = subprocess.run([sys.executable, "-c", _STILL_WAITING], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "")
