"""`oncelog config --data-dir`: the settings of a broker that does not run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, ClientConfig
from oncelog.client.admin import ConfigResource, ConfigSource, ResourceType
from oncelog.client.errors import KafkaError
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.testing import BrokerProcess
from tests.unit.cli.conftest import SETTINGS

Run = Callable[..., Result]
ANY_BROKER = ConfigResource(ResourceType.BROKER, "1")


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """Of a broker that was stopped, with a setting for itself and a topic with one."""
    process = BrokerProcess(tmp_path / "data", SETTINGS).start()
    try:
        with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
            admin.create_topics(["t"])
            admin.alter_configs(ANY_BROKER, set={"max.connections": "20", "num.partitions": "3"})
    finally:
        process.stop()
    yield tmp_path / "data"


def test_settings_of_a_stopped_broker_are_shown_changed_and_removed(run: Run, data_dir: Path) -> None:
    here = "--data-dir", data_dir
    shown = json.loads(run("config", "show", "broker", "1", *here, "-o", "json").stdout)
    assert {(row["name"], row["value"], row["source"]) for row in shown} == {
        ("max.connections", "20", "dynamic_broker"),
        ("num.partitions", "3", "dynamic_broker"),
    }
    assert run("config", "unset", "broker", "1", "max.connections", *here).exit_code == 0
    assert run("config", "set", "broker", "1", "num.partitions=4", *here).exit_code == 0
    assert run("config", "set", "topic", "t", "retention.ms=5000", *here).exit_code == 0
    process = BrokerProcess(data_dir, SETTINGS, log_level="warning").start()
    try:
        with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
            changed = {
                name: entry.value
                for name, entry in admin.describe_configs(ANY_BROKER).items()
                if entry.source == ConfigSource.DYNAMIC_BROKER
            }
            assert changed == {"num.partitions": "4"}
            topic = admin.describe_configs(ConfigResource(ResourceType.TOPIC, "t"))
            assert topic["retention.ms"].value == "5000"
    finally:
        process.stop()


def test_a_change_leaves_a_clean_stop_a_clean_one(run: Run, data_dir: Path) -> None:
    assert run("config", "set", "broker", "1", "num.partitions=4", "--data-dir", data_dir).exit_code == 0
    process = BrokerProcess(data_dir, SETTINGS, log_level="warning").start()
    process.stop()
    assert "lost its end" not in process.log_path.read_text()
    assert '"doubtful_epoch":0' in (data_dir / JOURNAL_FILE).read_text()


def test_what_cannot_be_is_refused(run: Run, data_dir: Path) -> None:
    def problem(*arguments: object) -> str:
        result = run("config", *arguments, "--data-dir", data_dir)
        assert result.exit_code != 0
        return result.stderr

    assert "less than 10 can only be set" in problem("set", "broker", "1", "max.connections=0")
    assert "Cannot update these configs dynamically" in problem("set", "broker", "1", "node.id=2")
    assert "did you mean" in problem("set", "broker", "1", "num.partition=2")
    assert "folder of broker 1, not of 2" in problem("set", "broker", "2", "num.partitions=2")
    assert "log.retention.ms: not set" in problem("unset", "broker", "1", "log.retention.ms")
    assert "there is no topic nowhere" in problem("show", "topic", "nowhere")
    assert "Error: Invalid value x" in (told := problem("set", "topic", "t", "retention.ms=x"))
    assert "must be a whole number (INVALID_CONFIG)" in told
    assert "no settings of groups" in problem("show", "group", "g")


def test_the_folder_of_a_broker_that_runs_is_refused(run: Run, own_broker: BrokerProcess) -> None:
    result = run("config", "show", "broker", "1", "--data-dir", own_broker.data_dir)
    assert result.exit_code == 1
    assert f"is in use by the process {own_broker.pid}" in result.stderr


def test_a_folder_that_no_broker_has_used_is_refused(run: Run, tmp_path: Path) -> None:
    assert "not the data folder" in run("config", "show", "broker", "1", "--data-dir", tmp_path).stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_goes_before_what_clients_have_changed(data_dir: Path) -> None:
    process = BrokerProcess(data_dir, {**SETTINGS, "num.partitions": 7}, log_level="warning").start()
    try:
        with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
            entry = admin.describe_configs(ANY_BROKER)["num.partitions"]
            assert (entry.value, entry.source) == ("7", ConfigSource.STATIC_BROKER)
            with pytest.raises(KafkaError, match="command line"):
                admin.alter_configs(ANY_BROKER, set={"num.partitions": "9"})
            admin.alter_configs(ANY_BROKER, delete=["num.partitions"])
            admin.create_topics(["u"])
            assert len(admin.describe_topics(["u"])["u"].partitions) == 7
    finally:
        process.stop()


def test_a_folder_of_a_broker_in_a_cluster_is_told_where_its_settings_are(run: Run, tmp_path: Path) -> None:
    refused = run("config", "show", "broker", "1", "--data-dir", tmp_path)
    assert (refused.exit_code, "are with the controllers" in refused.stderr) == (1, True), refused.stderr
