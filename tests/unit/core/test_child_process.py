"""Children can be waited for again after an interrupted wait."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from types import FrameType

import pytest

from oncelog.child_process import ChildProcess

ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)",
]


class Interrupted(Exception):
    pass


def interrupt(_: int, __: FrameType | None) -> None:
    raise Interrupted


def test_a_wait_that_was_interrupted_does_not_block_the_next_one() -> None:
    """On `Popen` a few of these interruptions leave its lock taken, and the last wait would never return."""
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ChildProcess(ENDLESS) as process:
            chance = random.Random(1)
            deadline_s = time.monotonic() + 1
            while time.monotonic() < deadline_s:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, 0.002))
                    process.wait(0.1)
                except (Interrupted, subprocess.TimeoutExpired):
                    signal.setitimer(signal.ITIMER_REAL, 0)
            process.kill()
            assert process.wait(180) == -signal.SIGKILL
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_lock_that_an_interruption_left_taken_blocks_nothing() -> None:
    with ChildProcess([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert process._waitpid_lock.acquire(blocking=False)  # type: ignore[attr-defined]
        assert process.wait(180) == 3
        assert (process.poll(), process.wait()) == (3, 3)


def test_a_process_that_does_not_end_in_time_is_reported_or_killed() -> None:
    with ChildProcess(DEAF, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.01 seconds"):
            process.wait(0.01)
        process.terminate()
        assert process.end_within(0.05) == -signal.SIGKILL


def test_output_is_collected_as_from_any_process() -> None:
    with ChildProcess[str]([sys.executable, "-c", "print('here')"], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=180) == ("here\n", None)
        assert process.returncode == 0
