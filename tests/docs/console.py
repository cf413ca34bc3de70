"""Console sessions in Markdown: what is typed and what comes out, taken out of a page and run in one shell.

In a block marked `console` a line that starts with `$ ` is typed, and what follows is what must come out. Times,
durations, rates and addresses differ from run to run: they are compared as such and not by their values.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

_BLOCK: Final = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END: Final = "--- end of command ---"
_VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "<time>"),
    (re.compile(r"\b\d+ (?:d|h|min) \d+ (?:h|min|s)\b"), "<duration>"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s)\b"), "<duration>"),
    (re.compile(r"[\d,]+/s"), "<rate>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r" +"), " "),
)


class Command(NamedTuple):
    line: str
    expected: list[str]


def commands_in(page: Path) -> list[Command]:
    found: list[Command] = []
    for block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), []))
            else:
                found[-1].expected.append(line)
    return found


def normalised(lines: list[str]) -> list[str]:
    out = []
    for line in lines:
        for pattern, replacement in _VARYING:
            line = pattern.sub(replacement, line)
        out.append(line.strip())
    return out


class Shell:
    """One bash for a whole page, with `oncelog` on its path."""

    def __init__(self, environment: dict[str, str]) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment, "PATH": path, "COLUMNS": "120"},
            start_new_session=True,
        )

    def run(self, line: str) -> list[str]:
        """What the command prints, on both streams."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the shell has no pipes")
        self._process.stdin.write(f"{line}\necho '{_END}'\n")
        self._process.stdin.flush()
        printed = []
        for answer in self._process.stdout:
            if answer.rstrip("\n") == _END:
                return printed
            printed.append(answer.rstrip("\n"))
        raise RuntimeError(f"the shell ended at {line!r}")

    def close(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.communicate()
