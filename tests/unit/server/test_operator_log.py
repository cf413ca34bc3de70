"""The broker's own log: what clients send cannot forge it, fill a disk with it, or hold up the broker by it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.client import Admin, ClientConfig
from oncelog.server import operator_log
from oncelog.server.operator_log import (
    KIND_LINES_MAX,
    LINE_CHARS_MAX,
    QUEUE_BYTES_MAX,
    WINDOW_S,
    JsonFormatter,
    OperatorLog,
    TextFormatter,
)


class Pipe:
    """A logger whose lines go into a pipe that is read when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.read_end, self.write_end = os.pipe()
        self.handler = OperatorLog(self.write_end, lambda: self.now_s)
        self.handler.setFormatter(TextFormatter())
        self.log = logging.Logger("oncelog.test")
        self.log.addHandler(self.handler)

    def lines(self) -> list[str]:
        """Those that are in the pipe now."""
        os.set_blocking(self.read_end, False)
        try:
            return os.read(self.read_end, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return []

    def end(self) -> None:
        """The thread of the handler must not write to a descriptor that is somebody else's by then."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator_log, "LAST_LINES_S", 0.0)
            self.handler.close()
        writer = self.handler._writer
        while writer is not None and writer.is_alive():
            self.lines()
            writer.join(0.01)

    def read_until(self, text: str) -> list[str]:
        seen: list[str] = []
        deadline_s = time.monotonic() + 120
        while not any(text in line for line in seen):
            assert time.monotonic() < deadline_s, seen[-5:]
            seen += self.lines()
        return seen


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.end()
    os.close(pipe.read_end)
    os.close(pipe.write_end)


def test_a_client_cannot_forge_a_line(pipe: Pipe) -> None:
    pipe.log.warning("closing the connection of %s", "x\n2026-01-01 INFO oncelog: all is well\x1b[2J\u202e\udc80\x85")
    (line,) = pipe.lines()
    assert r"x\n2026-01-01 INFO oncelog: all is well\x1b[2J\u202e\udc80\x85" in line


def test_a_trace_has_no_line_that_looks_like_a_message(pipe: Pipe) -> None:
    try:
        raise ValueError("first\n2026-01-01 INFO oncelog: all is well\x1b")
    except ValueError:
        pipe.log.exception("a request failed")
    first, *trace = pipe.lines()
    assert first.endswith("a request failed")
    assert all(line.startswith("    ") for line in trace)
    assert "\x1b" not in "".join(trace)


def test_long_ids_and_lines_are_cut(pipe: Pipe) -> None:
    pipe.log.info("refused: %s for %d", "i" * 32_000, 7)
    pipe.log.info("refused: %s", ValueError("i" * 1_000_000))
    short, long = pipe.lines()
    assert short.endswith(f"{'i' * 500}... (31,500 more characters) for 7")
    assert len(long) < LINE_CHARS_MAX + 200
    assert "more characters)" in long


def test_json_is_one_bounded_line_too() -> None:
    record = logging.LogRecord("a", logging.INFO, "file", 1, "to %s\n", ("x\n" * 10_000,), None)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert len(json.loads(text)["message"]) < LINE_CHARS_MAX


def test_many_lines_of_a_kind_become_a_number(pipe: Pipe) -> None:
    for number in range(12_445):
        pipe.log.info("refused %d", number)
    pipe.log.info("another kind")
    lines = pipe.lines()
    assert sum("refused" in line for line in lines) == KIND_LINES_MAX
    assert "another kind" in lines[-1]
    pipe.now_s += WINDOW_S
    pipe.log.info("another kind")
    told, other = pipe.lines()
    assert told.endswith("and 12,345 more like this within 10 s: refused 0")
    assert "another kind" in other


def test_what_was_left_out_is_told_without_another_line(pipe: Pipe) -> None:
    for number in range(KIND_LINES_MAX + 1):
        pipe.log.info("refused %d", number)
    pipe.now_s += WINDOW_S
    assert pipe.read_until("and 1 more like this")


def test_debugging_has_no_limit(pipe: Pipe) -> None:
    for number in range(KIND_LINES_MAX * 2):
        pipe.log.debug("step %d", number)
    assert len(pipe.lines()) == KIND_LINES_MAX * 2


def test_a_pipe_that_nobody_reads_blocks_nobody_and_loses_what_it_says(pipe: Pipe) -> None:
    done = threading.Event()
    count = (QUEUE_BYTES_MAX + 65_536) // 1_000 * 2

    def write() -> None:
        for number in range(count):
            pipe.log.debug("%d %s", number, bytes(1_000))
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(180), "it waits for somebody who reads"
    lines = pipe.read_until("lines of this log were dropped")
    numbers = [int(line.split()[4]) for line in lines if "DEBUG" in line]
    assert numbers == list(range(len(numbers))), "the first ones, in order"
    (dropped,) = [line.split()[4] for line in lines if "dropped" in line]
    assert int(dropped.replace(",", "")) == count - len(numbers)


def test_the_end_does_not_wait_for_a_reader_for_long(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_log, "LAST_LINES_S", 0.1)
    for _ in range(100):
        pipe.log.debug("%s", bytes(1_900))
    started_s = time.monotonic()
    pipe.handler.close()
    assert time.monotonic() - started_s < 20


def test_a_broker_whose_standard_error_is_not_read_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("oncelog ready on "), ready
        host, port = ready.split()[-1].split(":")
        unserved = bytes.fromhex("0000000a 7fff 0000 00000001 0000")
        for _ in range(1_500):
            with socket.create_connection((host, int(port)), timeout=30) as client:
                client.sendall(unserved)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b"", "each is refused, with a line in the log"
        with Admin(ClientConfig(bootstrap_servers=f"{host}:{port}")) as admin:
            admin.create_topics(["t"])
    finally:
        process.kill()
        _, log = process.communicate()
    assert KIND_LINES_MAX <= log.count("API key 32767") < 1_500
