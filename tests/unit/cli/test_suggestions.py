"""A command that names another one names it so that it can be typed: on the same cluster, with the same options."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Producer
from tests.unit.cli.conftest import Background

Run = Callable[..., Result]


def suggested(text: str) -> list[list[str]]:
    """The commands in quotes, or behind a colon, as words."""
    found = [part for part in text.replace("\n", "'").split("'") if part.strip().startswith("oncelog ")]
    found += [line.split(": ")[-1] for line in text.splitlines() if ": oncelog " in line]
    return [shlex.split(command)[1:] for command in found]


@pytest.mark.parametrize(
    "command",
    [
        ["consume", "TOPIC"],
        ["consume", "TOPIC", "--group", "GROUP"],
        ["group", "describe", "GROUP"],
        ["txn", "blocking", "TOPIC"],
        ["txn", "abort", "TOPIC:0", "--start-offset", "0"],
        ["txn", "history", "nobody"],
        ["config", "show", "broker", "first"],
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_a_suggestion_carries_what_named_the_cluster(
    run: Run,
    servers: str,
    topic: str,
    transactional: Callable[..., Producer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(10)
    run("group", "reset-offsets", f"group-{topic}", "--topic", topic, "--to", "0", "--yes")
    monkeypatch.delenv("ONCELOG_BOOTSTRAP_SERVERS")
    path = tmp_path / "client.properties"
    path.write_text("client.id=me\n")
    words = [word.replace("TOPIC", topic).replace("GROUP", f"group-{topic}") for word in command]
    options = ["-b", servers, "--config", str(path), "--set", "client.id=you"]
    result = CliRunner().invoke(cli, [*words, *options])
    commands = suggested(result.output)
    assert commands, result.output
    for found in commands:
        assert found[-len(options) :] == options
        done = CliRunner().invoke(cli, [*found, "--help"])
        assert done.exit_code == 0, "such a command exists"


def test_settings_of_a_consumer_are_not_carried_to_commands_that_have_none(
    run: Run, servers: str, topic: str, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(10)
    settings = ["--set", "isolation.level=read_committed", "--set", "client.id=other"]
    ((*_, option, value),) = suggested(run("consume", topic, *settings).stderr)
    assert (option, value) == ("--set", "client.id=other")


def test_what_the_environment_says_is_not_repeated(
    run: Run, topic: str, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(10)
    assert suggested(run("consume", topic).stderr) == [["txn", "blocking", f"{topic}:0"]]


def test_a_missing_broker_is_suggested_where_it_was_looked_for() -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "-b", "127.0.0.1:1"])
    assert "'oncelog serve --listen 127.0.0.1:1'" in result.stderr


def test_a_properties_file_in_latin_1_is_read(run: Run, servers: str, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_bytes(f"# Gr\xfc\xdfe\nclient.id=b\xfcro\nbootstrap.servers={servers}\n".encode("latin-1"))
    assert run("topic", "list", "--config", config).exit_code == 0


def test_a_broker_reads_a_properties_file_in_latin_1_and_stops_at_a_hang_up(
    background: Background, tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_bytes("# Gr\xfc\xdfe\nnum.partitions=3\n".encode("latin-1"))
    child = background("serve", "--config", config, "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("oncelog ready on ")
    child.send_signal(signal.SIGHUP)
    assert child.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_folder_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for command in (["lab", "filter", "--keep", str(blocked / "kept")], ["serve", "--data-dir", str(blocked / "data")]):
        done = subprocess.run([sys.executable, "-m", "oncelog", *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert str(blocked) in done.stderr
