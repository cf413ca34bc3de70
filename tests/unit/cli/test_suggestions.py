"""A command that names another one names it so that it can be typed: on the same cluster, with the same options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Producer
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts

Run = Callable[..., Result]


def suggested(text: str) -> list[list[str]]:
    """The commands in quotes, or behind a colon, as words."""
    found = [part for part in text.replace("\n", "'").split("'") if part.strip().startswith("oncelog ")]
    found += [line.split(": ")[-1] for line in text.splitlines() if ": oncelog " in line]
    return [shlex.split(command)[1:] for command in found]


def parse(words: list[str]) -> None:
    """As the command line does, without doing it. Raises UsageError."""
    command: click.Command = cli
    context: click.Context | None = None
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        context = click.Context(command, parent=context)
        command, words = found, words[1:]
    command.make_context("command", words, parent=context)


def test_a_suggestion_that_cannot_be_typed_is_found_out() -> None:
    parse(["config", "set", "topic", "t", "cleanup.policy=compact"])
    with pytest.raises(click.UsageError):
        parse(["config", "set", "t", "cleanup.policy=compact"])


@pytest.mark.parametrize(
    "command",
    [
        ["consume", "TOPIC"],
        ["consume", "TOPIC", "--group", "GROUP"],
        ["consume", "TOPIC", "--group", "GROUP", "--from", "2026-01-31T12:00"],
        ["consume", "TOPIC", "--group", "GROUP", "--from", "-10"],
        ["group", "describe", "GROUP"],
        ["txn", "blocking", "TOPIC"],
        ["txn", "abort", "TOPIC:0", "--start-offset", "0"],
        ["txn", "history", "nobody"],
        ["config", "show", "broker", "first"],
        ["registry", "--topic", "TOPIC", "--listen", "127.0.0.1:0"],
        ["connect", "check", "CONNECTORS"],
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
    producer.send(topic, b"held back").result(60)
    run("group", "reset-offsets", f"group-{topic}", "--topic", topic, "--to", "0", "--yes")
    monkeypatch.delenv("ONCELOG_BOOTSTRAP_SERVERS")
    path = tmp_path / "client.properties"
    path.write_text("client.id=me\n")
    connectors = tmp_path / "connectors.toml"
    connectors.write_text(f'[connectors.sink]\nkind = "sqlite-sink"\nurl = "none.db"\ntopics = "missing-{topic}"\n')
    known = {"TOPIC": topic, "GROUP": f"group-{topic}", "CONNECTORS": str(connectors)}
    words = [re.sub("|".join(known), lambda found: known[found.group()], word) for word in command]
    options = ["-b", servers, "--config", str(path), "--set", "client.id=you"]
    result = CliRunner().invoke(cli, [*words, *options])
    commands = suggested(result.output)
    assert commands, result.output
    for found in commands:
        assert found[-len(options) :] == options
        parse(found)


def test_settings_of_a_consumer_are_not_carried_to_commands_that_have_none(
    run: Run, servers: str, topic: str, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(60)
    settings = ["--set", "isolation.level=read_committed", "--set", "client.id=other"]
    ((*_, option, value),) = suggested(run("consume", topic, *settings).stderr)
    assert (option, value) == ("--set", "client.id=other")


def test_what_the_environment_says_is_not_repeated(
    run: Run, topic: str, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(60)
    assert suggested(run("consume", topic).stderr) == [["txn", "blocking", f"{topic}:0"]]


def test_a_missing_broker_is_suggested_where_it_was_looked_for() -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "-b", "127.0.0.1:1"])
    assert "'oncelog serve --listen 127.0.0.1:1'" in result.stderr


def test_the_folder_of_a_node_is_suggested_to_be_split(tmp_path: Path) -> None:
    folder = tmp_path / "a node"
    folder.mkdir()
    NodeFacts().write(folder / JOURNAL_FILE)
    result = CliRunner().invoke(cli, ["serve", "--data-dir", str(folder), "--set", "process.roles=controller"])
    shown = result.output.split("make a cluster of that node by: ")[1].strip()
    words = shlex.split(shown)[1:]
    assert words == ["cluster", "split", "--data-dir", str(folder), "--controller-dir", f"{folder}-controller"]
    parse(words)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["lab", "fencin"], "fencing"),
        (["config", "show", "topc", "x"], "topic"),
        (["consume", "x", "-o", "jsn"], "json"),
        (["consume", "x", "--value-type", "lnog"], "long"),
        (["acl", "add", "--operation", "Raed"], "read"),
        (["completion", "bsh"], "bash"),
        (["txn", "list", "--state", "Ongoin"], "Ongoing"),
        (["bench", "growth", "abortd"], "aborted"),
        (["bench", "suite", "--only", "prodce"], "produce"),
        (["bench", "profile", "produce-100"], "produce-100B"),
        (["serv"], "serve"),
    ],
)
def test_a_word_that_is_like_a_known_one_is_answered_with_it(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"did you mean {meant}?" in result.stderr


def test_a_word_that_is_like_none_is_answered_with_all() -> None:
    stderr = CliRunner().invoke(cli, ["config", "show", "xyz", "x"]).stderr
    assert "is not one of 'topic', 'broker', 'group'" in stderr
    assert "did you mean" not in stderr
