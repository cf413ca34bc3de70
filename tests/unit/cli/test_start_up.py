"""Commands import what they need and nothing else; the list of commands says what they say; shells can complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import COMMANDS, cli
from tests.data import kafka

_SHOW_MODULES = """
import json, sys
from oncelog.cli.main import cli
try:
    cli.main(sys.argv[1:], prog_name="oncelog", standalone_mode=False)
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


_SHOW_COLLECTIONS = """
import gc, sys
gc.collect()
looked_at = []

def note(phase, details):
    if phase == "start":
        looked_at.append(len(gc.get_objects(details["generation"])))

gc.callbacks.append(note)
from oncelog.__main__ import main
try:
    main()
finally:
    print(gc.isenabled(), max(looked_at, default=0))
"""


def modules_of(*arguments: object) -> set[str]:
    command = [sys.executable, "-c", _SHOW_MODULES, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    return {".".join(module.split(".")[:2]) for module in modules if module.startswith("oncelog.")}


def test_help_imports_no_command() -> None:
    modules = modules_of("--help")
    assert packages(modules) == {"oncelog.cli", "oncelog.core"}
    assert not modules & {"asyncio", "rich", "numpy", "pyarrow", "pyspark", "cramjam"}
    assert len([module for module in modules if module.startswith("oncelog")]) <= 10


def test_what_a_start_imports_is_not_looked_through_for_garbage(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SHOW_COLLECTIONS, "serve", "--data-dir", str(tmp_path / "a,b")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "one folder is supported" in done.stderr
    is_enabled, most = done.stdout.split()
    assert is_enabled == "True"
    assert int(most) < 10_000  # of thirty thousand that there are by then


@pytest.mark.parametrize(
    "command", ["topic", "produce", "consume", "group", "txn", "config", "cluster", "log", "registry"]
)
def test_the_help_of_a_command_imports_no_client(command: str) -> None:
    modules = modules_of(command, "--help")
    assert packages(modules) <= {"oncelog.cli", "oncelog.core", "oncelog.protocol"}
    assert not modules & {"asyncio", "rich", "numpy", "pyarrow", "pyspark"}


def test_inspection_needs_no_client_and_no_event_loop(tmp_path: Path) -> None:
    folder = kafka.unpack("tv2", tmp_path)
    modules = modules_of("log", "verify", folder)
    assert not modules & {"asyncio", "rich", "numpy", "pyarrow", "oncelog.client", "oncelog.server"}


def test_admin_commands_do_without_arrow(servers: str) -> None:
    modules = modules_of("topic", "list")
    assert not modules & {"rich", "numpy", "pyarrow", "oncelog.server", "oncelog.inspection"}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    help_text = " ".join((command.help or "").split())
    assert help_text.startswith(COMMANDS[name].summary)


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("confluent_kafka", "bench", ["bench", "suite"]),
        ("pyspark", "spark", ["demo"]),
        ("pyarrow", "spark", ["run", __file__]),
    ],
)
def test_a_command_whose_extra_is_missing_names_it(
    module: str, extra: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"is missing: pip install 'oncelog[{extra}]'\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Callable[..., Result], shell: str) -> None:
    assert "_ONCELOG_COMPLETE" in run("completion", shell).stdout


def test_a_shell_is_offered_commands_options_and_topics(servers: str, topic: str) -> None:
    def offered(line: str) -> list[str]:
        words = line.split(" ")
        environment = {
            **os.environ,
            "_ONCELOG_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        done = subprocess.run(
            [str(Path(sys.executable).with_name("oncelog"))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        return [entry.partition(",")[2] for entry in done.stdout.splitlines()]

    assert "topic" in offered("oncelog to")
    assert "--isolation" in offered("oncelog consume t --iso")
    assert topic in offered(f"oncelog consume {topic[:4]}")
    assert topic in offered(f"oncelog topic describe {topic[:4]}")


def test_an_unknown_command_is_a_usage_error(run: Callable[..., Result]) -> None:
    result = run("topics")
    assert result.exit_code == 2
    assert "there is no command topics; did you mean topic?" in result.stderr
