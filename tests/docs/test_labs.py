"""Every lab passes, tells its steps, and would fail if what it claims did not hold."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.lab.catalogue import LABS
from oncelog.cli.lab.stage import Stage
from oncelog.cli.main import cli
from oncelog.client.consumer_records import ConsumerRecord
from tests.unit.cli.test_expected_conveniences import on_a_terminal


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["lab", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), (result.exception, result.output)
    return result


@pytest.mark.parametrize("name", list(LABS))
def test_a_lab_passes(name: str) -> None:
    result = run(name, "-o", "json")
    told = json.loads(result.stdout)
    assert [check for check in told["checks"] if not check["holds"]] == []
    assert result.exit_code == 0
    assert told["passed"] is True
    assert len(told["steps"]) >= 3
    assert len(told["checks"]) >= 2


@pytest.mark.parametrize("name", ["fencing", "filter", "long-transaction", "interleaved"])
def test_a_lab_fails_when_readers_see_what_is_not_committed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Stage.records

    def broken(stage: Stage, topic: str, partition: int = 0, *, committed: bool = True) -> list[ConsumerRecord]:
        return honest(stage, topic, partition, committed=False)

    monkeypatch.setattr(Stage, "records", broken)
    result = run(name)
    assert result.exit_code == 1
    assert "FAILS" in result.stdout


def test_a_lab_without_a_check_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "check", lambda *_: None)
    assert run("interleaved").exit_code == 1


def test_what_a_lab_has_left_can_be_inspected(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    text = run("filter", "--keep", kept).stdout
    assert "ABORT marker" in text
    assert "transaction index of orders-0" in text
    verified = CliRunner().invoke(cli, ["log", "verify", str(kept / "data")])
    assert verified.exit_code == 0, verified.output
    again = run("filter", "--keep", kept)
    assert again.exit_code == 1
    assert "is there already" in again.stderr


def test_ctrl_c_in_a_pause_ends_the_lab(tmp_path: Path) -> None:
    main_end, child_end = pty.openpty()
    command = [sys.executable, "-m", "oncelog", "lab", "filter", "--pause", "--keep", str(tmp_path / "kept")]
    child = subprocess.Popen(command, stdin=child_end, stdout=child_end, stderr=child_end, preexec_fn=_on_this_terminal)
    os.close(child_end)
    seen = b""
    while b"Enter for the next step" not in seen:
        seen += os.read(main_end, 65536)
    os.write(main_end, b"\x03")
    with contextlib.suppress(OSError):
        while part := os.read(main_end, 65536):
            seen += part
    os.close(main_end)
    assert child.wait(180) == 130, seen
    assert seen.count(b"Enter for the next step") == 1
    assert (tmp_path / "kept" / "data" / ".kafka_cleanshutdown").exists(), "its broker was stopped in order"


def _on_this_terminal() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_labs_are_listed() -> None:
    listed = run("--list").stdout
    assert all(name in listed for name in LABS)
    rows = json.loads(run("--list", "-o", "json").stdout)
    assert rows == [{"lab": name, "summary": lab.summary} for name, lab in LABS.items()]
    assert run("nothing").exit_code == 2
    unnamed = run()
    assert (unnamed.exit_code, "Missing argument 'LAB'" in unnamed.stderr) == (2, True)


def test_a_lab_fits_a_terminal() -> None:
    code, shown = on_a_terminal(["lab", "fencing"], 80)
    assert code == 0
    lines = [re.sub(r"\x1b\[[0-9;]*[a-zA-Z]|.*\r", "", line) for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80
    # Rows are whole; sentences go on in the next line.
    assert sum(line.endswith("(first-transactional)") for line in lines) == 9
    assert "the leader of that partition is its coordinator." in " ".join(" ".join(lines).split())
