"""A test process that dies, in whatever way, leaves neither its broker nor the broker's folder behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until

_START = """
import json, os, signal, sys, time
import oncelog.testing
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and inherited from there
folder = sys.argv[1] or None
with oncelog.testing.broker(data_dir=folder) as broker:
    pids = [broker.pid]
    {before}
    print(json.dumps([str(broker.data_dir), *pids]), flush=True)
    sys.stdin.readline()  # the folder has been seen
    {then}
"""
_SLEEP = "while True: time.sleep(0.05)"  # in pieces: a signal just before a sleep is handled only after it


class Victim:
    def __init__(self, before: str = "pass", then: str = _SLEEP, folder: str = "") -> None:
        program = _START.format(before=before, then=then)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        path, self.broker, *self.children = json.loads(self.process.stdout.readline())
        self.folder = Path(path)
        assert self.folder.exists()
        self.process.stdin.write("\n")
        self.process.stdin.close()

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.wait()

    def wait(self) -> None:
        self.process.wait(180)
        if self.process.stdout is not None:
            self.process.stdout.close()


def runs(pid: int) -> bool:
    """An ended process that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def gone(pid: int, folder: Path) -> Callable[[], bool]:
    return lambda: not runs(pid) and not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_test_process_that_gets_a_signal_leaves_nothing(number: int) -> None:
    victim = Victim()
    victim.end(number)
    wait_until(gone(victim.broker, victim.folder.parent))


@pytest.mark.parametrize("last_words", ["os._exit(1)", "os.abort()", "sys.exit(0)"])
def test_a_test_process_that_ends_by_itself_leaves_nothing(last_words: str) -> None:
    victim = Victim(then=last_words)
    victim.wait()
    wait_until(gone(victim.broker, victim.folder.parent))


@pytest.mark.parametrize(
    "before",
    ["broker.kill()", "os.kill(broker.pid, signal.SIGSTOP)", "broker.kill(); broker.start(); pids = [broker.pid]"],
    ids=["killed", "stopped", "restarted"],
)
def test_the_folder_goes_whatever_state_the_broker_is_in(before: str) -> None:
    victim = Victim(before=before)
    victim.end(signal.SIGKILL)
    wait_until(gone(victim.broker, victim.folder.parent))


def test_a_whole_process_group_that_is_killed_leaves_nothing() -> None:
    victim = Victim()
    os.killpg(victim.process.pid, signal.SIGKILL)
    victim.wait()
    wait_until(gone(victim.broker, victim.folder.parent))


def test_a_forked_child_that_lives_on_keeps_nothing_alive() -> None:
    victim = Victim(before="pids.append(os.fork()); pids[-1] or time.sleep(600)")
    (child,) = victim.children
    try:
        victim.end(signal.SIGKILL)
        wait_until(gone(victim.broker, victim.folder.parent))
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_the_test_gave_stays_without_a_broker(tmp_path: Path) -> None:
    victim = Victim(folder=str(tmp_path / "data"))
    victim.end(signal.SIGKILL)
    wait_until(lambda: not runs(victim.broker))
    assert (tmp_path / "data" / "meta.properties").exists()


_STARTING = """
import signal
import oncelog.testing
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell, and inherited
print("begun", flush=True)
while True:
    with oncelog.testing.broker():
        print("ready", flush=True)
"""


class Starting:
    """A process that does nothing but start brokers. Whatever comes from it has its mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", _STARTING],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder)},
            text=True,
        )
        self.await_word("begun")

    def await_word(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == word + "\n"

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait(180)

    def left(self) -> list[int]:
        """Processes that still run. A folder that there is when there are none stays for ever."""
        mark = f"TMPDIR={self.folder}\0".encode()
        return [int(each.name) for each in Path("/proc").glob("[0-9]*") if mark in environment_of(each)]


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def folders_in(path: Path) -> list[Path]:
    """Python tries its temporary folder with a file, which is left behind if it is killed in that moment."""
    return [each for each in path.iterdir() if each.is_dir()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("delay_ms", [0, 30, 80, 150, 250, 400])
def test_a_test_process_that_ends_while_its_broker_starts_leaves_nothing(
    number: int, delay_ms: int, tmp_path: Path
) -> None:
    victim = Starting(tmp_path)
    time.sleep(delay_ms / 1000)
    victim.end(number)
    wait_until(lambda: not victim.left())
    assert folders_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("delay_ms", [0, 15, 30, 45])
def test_a_test_process_that_ends_while_a_further_broker_starts_leaves_nothing(
    number: int, delay_ms: int, tmp_path: Path
) -> None:
    victim = Starting(tmp_path)
    victim.await_word("ready")
    time.sleep(delay_ms / 1000)
    victim.end(number)
    wait_until(lambda: not victim.left())
    assert folders_in(tmp_path) == []
