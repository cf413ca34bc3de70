"""What takes longer than a second shows what it is doing: on a terminal, and nowhere else."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.cli import progress
from oncelog.cli.progress import doing
from oncelog.testing import BrokerProcess, broker
from tests.waiting import wait_until

ERASE = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[Terminal]]:
    """Makes the standard output and error a terminal. For the body of a test: pytest changes both between phases."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "REDRAWN_EVERY_S", 0.005)

    @contextlib.contextmanager
    def make() -> Iterator[Terminal]:
        found = Terminal()
        with contextlib.redirect_stdout(found), contextlib.redirect_stderr(found):
            yield found

    return make


Terminals = Callable[[], contextlib.AbstractContextManager[Terminal]]


def test_the_line_has_what_is_done_and_is_erased_at_the_end(terminal: Terminals) -> None:
    at = ["first"]
    with terminal() as screen, doing(lambda: at[0]):
        wait_until(lambda: "first ..." in screen.getvalue())
        at[0] = "second"
        wait_until(lambda: "second ..." in screen.getvalue())
    assert screen.getvalue().endswith(ERASE)


def test_what_ends_within_a_second_shows_nothing(terminal: Terminals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 60.0)
    with terminal() as screen, doing("something"):
        pass
    assert screen.getvalue() == ""


def test_other_output_stands_on_a_line_of_its_own(terminal: Terminals) -> None:
    with terminal() as screen, doing("something"):
        wait_until(lambda: "something" in screen.getvalue())
        progress.echo("a result")
    assert f"{ERASE}a result\n" in screen.getvalue()


def test_it_can_end_while_other_output_is_written(terminal: Terminals) -> None:
    with terminal() as screen, doing("something") as line:
        wait_until(lambda: "something" in screen.getvalue())
        with line.hidden():
            time.sleep(0.05)  # the thread that draws waits for its turn
            line.end()
    assert screen.getvalue().endswith(ERASE)


def test_one_within_another_shows_nothing(terminal: Terminals) -> None:
    with terminal() as screen, doing("outer"), doing("inner"):
        wait_until(lambda: screen.getvalue().count("outer") > 2)
    assert "inner" not in screen.getvalue()


def test_a_line_is_never_wider_than_the_terminal(terminal: Terminals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with terminal() as screen, doing("x" * 100):
        wait_until(lambda: "x" in screen.getvalue())
    assert max(map(len, screen.getvalue().split(ERASE))) == 39


def test_each_says_which_of_how_many(terminal: Terminals) -> None:
    with terminal() as screen:
        for item in progress.each(["a", "b"], lambda item: f"reading {item}"):
            expected = f"reading {item}, {'ab'.index(item) + 1} of 2"
            wait_until(lambda expected=expected: expected in screen.getvalue())  # type: ignore[misc]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of everything that would be shown if it took long."""
    texts: list[str] = []

    def enter(self: doing) -> doing:
        if self._is_wanted:
            texts.append(self._what if isinstance(self._what, str) else self._what())
        return self

    monkeypatch.setattr(doing, "__enter__", enter)
    return texts


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("topic list", "waiting for"),
        ("topic describe {topic}", "waiting for"),
        ("topic delete-records {topic} --before latest --yes", "waiting for"),
        ("group list", "waiting for"),
        ("group reset-offsets g --topic {topic} --to earliest --yes", "waiting for"),
        ("txn list", "waiting for"),
        ("txn blocking", "waiting for"),
        ("txn hanging", "waiting for"),
        ("config show topic {topic}", "waiting for"),
        ("user list", "waiting for"),
        ("acl list", "waiting for"),
        ("cluster info", "waiting for"),
        ("connect status", "reading what connectors"),
        ("produce {topic} {file}", "0 records to {topic}, 0% of 6 B"),
        ("consume {topic}", "reading {topic}-0, 1 of 1"),
        ("consume {topic} --group progress", "reading as a member of progress"),
        ("log dump {data}", "reading {data}"),
        ("log dump {data} --format kafka", "reading {data}"),
        ("log verify {data}", "checking the folder"),
        ("log find {data} --key x", "searching {data}"),
        ("log timeline {data}", "reading {data}"),
    ],
)
def test_commands_that_can_take_long_show_it(
    command: str,
    text: str,
    shown: list[str],
    run: Callable[..., Result],
    shared_broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "lines"
    file.write_text("hello\n")
    names = {"topic": topic, "file": file, "data": shared_broker.data_dir / f"{topic}-0"}
    run("produce", topic, file)
    shown.clear()
    run(*command.format(**names).split())
    assert any(text.format(**names) in one for one in shown), shown


# In a real terminal


@pytest.fixture
def paused() -> Iterator[BrokerProcess]:
    with broker() as process:
        process.pause()
        yield process
        process.resume()


def in_terminal(*arguments: str, columns: int = 80, stdout: int | None = None) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "oncelog", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    return process, ours


def read_until(descriptor: int, expected: str, deadline_s: float = 60.0) -> str:
    text, end_s = "", time.monotonic() + deadline_s
    while expected not in text:
        assert time.monotonic() < end_s, text
        try:
            text += os.read(descriptor, 4096).decode()
        except OSError:  # the other end is closed
            return text
    return text


def test_a_broker_that_does_not_answer_is_waited_for_visibly(paused: BrokerProcess) -> None:
    process, screen = in_terminal("topic", "list", "-b", paused.bootstrap_servers, "--timeout", "60s")
    seen = read_until(screen, f"waiting for {paused.bootstrap_servers} ... 1")
    paused.resume()
    assert process.wait(180) == 0
    rest = read_until(screen, "never")
    os.close(screen)
    assert ERASE + "there are no topics" in seen + rest


def test_a_group_reads_an_empty_topic_to_its_end() -> None:
    with broker() as process:
        topic = process.create_topic()
        reader, screen = in_terminal("consume", topic, "--group", "g", "-b", process.bootstrap_servers)
        assert reader.wait(180) == 0
        os.close(screen)


def test_scripts_see_nothing_of_it(paused: BrokerProcess) -> None:
    arguments = ["topic", "list", "-b", paused.bootstrap_servers, "--timeout", "2s"]
    json_process, json_screen = in_terminal(*arguments, "-o", "json")
    read_end, write_end = os.pipe()
    piped, piped_screen = in_terminal(*arguments, stdout=write_end)
    os.close(write_end)
    for process, screen in ((json_process, json_screen), (piped, piped_screen)):
        assert process.wait(180) == 1
        text = read_until(screen, "never")
        os.close(screen)
        assert "Error" in text
        assert ERASE not in text
    os.close(read_end)
