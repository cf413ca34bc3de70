"""docs/stuck-reader.md, executed: every command prints what the page says it prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.testing import BrokerProcess, broker
from tests.docs.console import Command, Shell, commands_in, normalised

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stuck-reader.md"


@pytest.fixture
def process() -> Iterator[BrokerProcess]:
    with broker() as running:
        yield running


def test_the_walk_through_is_true(process: BrokerProcess) -> None:
    commands = commands_in(PAGE)
    assert len(commands) >= 12
    shell = Shell({"ONCELOG_BOOTSTRAP_SERVERS": process.bootstrap_servers, "DATA": str(process.data_dir)})
    try:
        for command in commands:
            check(shell, command)
    finally:
        shell.close()


def check(shell: Shell, command: Command) -> None:
    printed = shell.run(command.line)
    assert normalised(printed) == normalised(command.expected), command.line
    if command.line.endswith("&"):
        # The page goes on as a person would: once the job in the background has begun.
        deadline_s = time.monotonic() + 120
        while "Ongoing" not in "".join(shell.run("oncelog txn list --open")):
            assert time.monotonic() < deadline_s, "the job has not begun its transaction"
