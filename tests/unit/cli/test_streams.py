"""Standard streams that are closed, full, or of a terminal that lacks letters: a sentence, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oncelog.client import Admin


def in_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("oncelog ", f"{sys.executable} -m oncelog ")],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("oncelog topic list >&-", "the standard output is closed"),
        ("oncelog consume TOPIC >&-", "the standard output is closed"),
        ("oncelog topic list <&- >&-", "the standard output is closed"),
        ("oncelog produce TOPIC <&-", "the standard input is closed"),
        ("oncelog completion bash >/dev/full", "the output cannot be written: No space left on device"),
    ],
)
def test_a_stream_that_cannot_be_used(servers: str, topic: str, line: str, told: str) -> None:
    done = in_shell(line.replace("TOPIC", topic))
    assert (done.returncode, told in done.stderr) == (1, True), done
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr


def test_nobody_needs_to_listen_to_what_is_told_on_the_side(admin: Admin, servers: str, topic: str) -> None:
    done = in_shell(f"printf 'a\\n' | oncelog produce {topic} 2>&-")
    assert (done.returncode, done.stdout) == (0, "")
    assert in_shell(f"oncelog consume {topic} 2>&- <&-").stdout == "a\n"


def test_letters_that_a_terminal_does_not_have(servers: str, topic: str) -> None:
    assert in_shell(f"echo a | oncelog produce {topic} --transactional-id größe").returncode == 0
    listed = in_shell("oncelog txn list --pattern 'gr.*'", PYTHONIOENCODING="ascii")
    assert "Traceback" not in listed.stderr
    assert "gr\\xf6\\xdfe" in listed.stdout
