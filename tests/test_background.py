"""Tests are green however they are started: from a terminal, in the background of a shell, without a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.second_try import NOTE

SLEEPER = "import time; print(flush=True); time.sleep(600)"


def test_ctrl_c_ends_what_a_test_starts() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == -signal.SIGINT
        finally:
            child.kill()


def test_so_does_it_where_tests_run_in_the_background() -> None:
    """A shell that is not interactive has what it starts with `&` ignore SIGINT, and children inherit that."""
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "1"]
    ran = subprocess.run(
        [*command, f"{__file__}::{test_ctrl_c_ends_what_a_test_starts.__name__}"],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != NOTE and not name.startswith("PYTEST_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
