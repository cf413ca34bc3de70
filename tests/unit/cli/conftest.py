"""One broker for all tests of commands, and ways to run them: in this process, or as processes as people do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.testing import BrokerProcess, broker

SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "oncelog.cluster.action.enable": "true",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
Background = Callable[..., "subprocess.Popen[str]"]
STANDSTILL = Path(__file__).with_name("standstill")
SILENCE_S = 240
"""Shorter than the five minutes after which clients look again for what has changed, and members of groups give up."""
LAST_WORDS_S = 10


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    with broker(SETTINGS) as process:
        yield process


@pytest.fixture
def servers(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the broker, which commands find in the environment."""
    monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", shared_broker.bootstrap_servers)
    return shared_broker.bootstrap_servers


@pytest.fixture
def run(servers: str) -> Callable[..., Result]:
    """A command in this process."""

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        unforeseen = result.exception is not None and not isinstance(result.exception, SystemExit)
        assert not unforeseen, (result.exception, result.output)
        return result

    return call


@pytest.fixture
def process(servers: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A command as a process, with text on its standard input."""

    def call(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "oncelog", *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180, env={**os.environ})
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return call


@pytest.fixture
def background() -> Iterator[Background]:
    """Starts commands as processes that go on, with pipes. Those that are left are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "oncelog", *map(str, arguments)]
        pipe = subprocess.PIPE
        path = os.pathsep.join([str(STANDSTILL), *filter(None, [os.environ.get("PYTHONPATH")])])
        # Where this runs in the background of a shell, Ctrl-C is ignored, and children would inherit that.
        child = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            preexec_fn=heed_signals,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def line_of(child: subprocess.Popen[str], stream: IO[str] | None = None) -> str:
    """The next line of its standard output, or of another stream. A child that stands still says what it waits for."""
    told = stream or child.stdout
    assert told is not None and child.stderr is not None
    has_ended = threading.Event()

    def end() -> None:
        has_ended.set()
        child.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LAST_WORDS_S)
        child.kill()

    timer = threading.Timer(SILENCE_S, end)
    timer.start()
    try:
        line = told.readline()
    finally:
        timer.cancel()
    assert not has_ended.is_set(), f"it said nothing for {SILENCE_S} s: {line}{child.stderr.read()}"
    return line


def heed_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """A broker that the test may stop and continue."""
    process = BrokerProcess(tmp_path / "data", SETTINGS, log_level="warning").start()
    monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", process.bootstrap_servers)
    try:
        yield process
    finally:
        if process.running:
            os.kill(process.pid, signal.SIGCONT)
        process.stop()


def await_text(what: Callable[[], str], text: str) -> None:
    deadline_s = time.monotonic() + 120
    while text not in (seen := what()):
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.02)
