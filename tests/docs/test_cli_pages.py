"""The pages about the command line say what the commands say, and name only commands and options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oncelog.cli.main import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
MADE = ("cli.md", "client-api.md")
"""From the program itself."""
PAGES = ["../README.md", *sorted(page.name for page in DOCS.glob("*.md") if page.name not in MADE)]


def test_the_reference_is_made_from_the_commands(tmp_path: Path) -> None:
    # In a process of its own: click keeps the help option of a command as it was first asked for, by any test.
    page = tmp_path / "cli.md"
    subprocess.run([sys.executable, "-m", "oncelog.cli.reference", str(page)], check=True, timeout=60)
    assert (DOCS / "cli.md").read_text() == page.read_text(), "run: python -m oncelog.cli.reference docs/cli.md"


def mentioned(page: str) -> list[str]:
    """Command lines in code: `oncelog ...`, up to a pipe or a comment. What a broker prints when ready is none."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    found = re.findall(r"`(oncelog [a-z][^`]*)`", text)
    found += [line for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE) if "oncelog " in line]
    found += re.findall(r"^(oncelog [a-z][^#\n]*)", text, re.MULTILINE)
    lines = []
    for line in found:
        for part in re.split(r"[|&]", line):
            if part.strip().startswith("oncelog ") and not part.strip().startswith("oncelog ready on "):
                lines.append(part.strip())
    return lines


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_named_exists_with_its_options(page: str) -> None:
    for line in mentioned(page):
        problem = problem_of(shlex.split(line)[1:])
        assert not problem, f"{page}: {line}: {problem}"


def test_the_pages_name_enough_commands_to_be_worth_checking() -> None:
    assert len(mentioned("from-kafka-scripts.md")) > 40
    assert len(mentioned("stuck-reader.md")) > 12
    assert len(mentioned("../README.md")) > 5
    assert len(mentioned("install.md")) > 5
    assert len(mentioned("tutorial.md")) > 8
    assert "oncelog console --log-in" in " ".join(mentioned("console.md"))


def problem_of(words: list[str]) -> str:
    command: click.Command = cli
    context = click.Context(cli, info_name="oncelog")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            return f"there is no command {words[0]}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    for word in words:
        is_long = word.startswith("--")
        name = word.partition("=")[0] if is_long else word[:2]
        is_option = is_long or (len(word) > 1 and word[0] == "-" and not word[1].isdigit())
        if is_option and name not in known:
            return f"there is no option {name}"
    return ""


def test_a_wrong_option_would_be_noticed() -> None:
    assert problem_of(["topic", "list", "--nonsense"]) == "there is no option --nonsense"
    assert problem_of(["topik", "list"]) == "there is no command topik"
