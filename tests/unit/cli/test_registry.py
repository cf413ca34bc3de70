"""`oncelog registry` as a process, and schemas on the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.schemas.registry_client import RegistryClient
from oncelog.testing.broker import BrokerProcess
from tests.registries import serving_registry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def registry(fresh_oncelog_broker: BrokerProcess) -> Iterator[str]:
    with serving_registry(fresh_oncelog_broker.bootstrap_servers) as address:
        yield address


def oncelog(broker: BrokerProcess, *arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(cli, [*arguments, "-b", broker.bootstrap_servers], input=given)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(fresh_oncelog_broker: BrokerProcess, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "oncelog", "registry", "-b", fresh_oncelog_broker.bootstrap_servers]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("oncelog registry on http://127.0.0.1:")
        assert RegistryClient(line.removeprefix("oncelog registry on ").strip()).subjects() == []
        process.send_signal(number)
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--listen", "0.0.0.0:8081"], "not a loopback address"),
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--certificate", __file__], "belong together"),
    ],
)
def test_what_would_not_be_safe_is_refused(
    fresh_oncelog_broker: BrokerProcess, options: list[str], problem: str
) -> None:
    result = oncelog(fresh_oncelog_broker, "registry", *options)
    assert result.exit_code != 0
    assert problem in result.output


def test_an_address_in_use_is_explained_before_a_topic_is_made(fresh_oncelog_broker: BrokerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = oncelog(fresh_oncelog_broker, "registry", "--listen", address)
    assert result.exit_code == 1
    assert f"--listen: {address} is in use by another process; stop it, or use another port" in result.output
    with fresh_oncelog_broker.admin() as admin:
        assert admin.list_topics(internal=True) == {}


def test_a_file_of_users_must_have_some(fresh_oncelog_broker: BrokerProcess, tmp_path: Path) -> None:
    users = tmp_path / "users"
    for text, problem in (("", "has no users"), ("alice", "line 1 of")):
        users.write_text(text)
        result = oncelog(fresh_oncelog_broker, "registry", "--users", str(users))
        assert result.exit_code == 1
        assert problem in result.output


@pytest.mark.parametrize(
    ("name", "schema", "value"),
    [
        ("order.avsc", json.dumps(ORDER), {"id": 7}),
        ("order.json", json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}), {"id": 7}),
        ("order.proto", 'syntax = "proto3"; message Order { int32 id = 1; }', {"id": 7}),
        ("text.avsc", '"string"', "seven"),
    ],
)
def test_what_is_produced_with_a_schema_is_consumed(
    fresh_oncelog_broker: BrokerProcess, registry: str, tmp_path: Path, name: str, schema: str, value: object
) -> None:
    file, lines = tmp_path / name, tmp_path / "lines"
    file.write_text(schema)
    topic = fresh_oncelog_broker.create_topic()
    lines.write_text(json.dumps(value) + "\n")
    given = ["--schema-registry", registry, "--value-schema", str(file), str(lines)]
    made = oncelog(fresh_oncelog_broker, "produce", topic, *given)
    assert made.exit_code == 0, made.output
    lines.write_text(json.dumps({"key": "k", "value": value}) + "\n")
    newest = oncelog(fresh_oncelog_broker, "produce", topic, "-F", "json", "--schema-registry", registry, str(lines))
    assert newest.exit_code == 0, newest.output
    found = oncelog(fresh_oncelog_broker, "consume", topic, "--schema-registry", registry, "-o", "json")
    assert found.exit_code == 0, found.output
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [(None, value), ("k", value)]


def test_a_value_that_does_not_fit_names_its_line(
    fresh_oncelog_broker: BrokerProcess, registry: str, tmp_path: Path
) -> None:
    file, lines = tmp_path / "order.avsc", tmp_path / "lines"
    file.write_text(json.dumps(ORDER))
    topic = fresh_oncelog_broker.create_topic()
    lines.write_text('{"id": 1}\n{"id": "x"}\n')
    given = ["--schema-registry", registry, "--value-schema", str(file), str(lines)]
    result = oncelog(fresh_oncelog_broker, "produce", topic, *given)
    assert result.exit_code == 1
    assert "line 2" in result.output
    assert "does not fit its Avro schema" in result.output


def test_records_without_a_schema_name_their_place(
    fresh_oncelog_broker: BrokerProcess, registry: str, tmp_path: Path
) -> None:
    topic = fresh_oncelog_broker.create_topic()
    lines = tmp_path / "lines"
    lines.write_text("plain text\n")
    assert oncelog(fresh_oncelog_broker, "produce", topic, str(lines)).exit_code == 0
    result = oncelog(fresh_oncelog_broker, "consume", topic, "--schema-registry", registry)
    assert result.exit_code == 1
    assert f"{topic}-0, offset 0: the value cannot be read by --schema-registry: " in result.output
    assert "--value-type" not in result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--value-type", "schema"], "needs --schema-registry"),
        (["--schema-registry", "http://127.0.0.1:1", "--value-type", "hex"], "has no use"),
        (["--schema-registry", "nonsense"], "no address of a registry"),
    ],
)
def test_options_that_contradict_each_other(
    fresh_oncelog_broker: BrokerProcess, options: list[str], problem: str
) -> None:
    result = oncelog(fresh_oncelog_broker, "consume", "any", *options)
    assert result.exit_code == 2
    assert problem in result.output
