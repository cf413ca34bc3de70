from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import oncelog.testing
from oncelog.client.admin_configs import ConfigResource, ResourceType
from oncelog.testing import BrokerProcess, TimedOut
from oncelog.testing.launcher import LaunchedProcess


def test_the_context_manager_cleans_up(tmp_path: Path) -> None:
    with oncelog.testing.broker({"num.partitions": 3}) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=30).close()
        folder, pid = broker.data_dir, broker.pid
        assert (folder / "meta.properties").exists()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_kill_and_start_goes_on_with_the_same_folder_and_port(tmp_path: Path) -> None:
    with oncelog.testing.broker(data_dir=tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.bootstrap_servers == address
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_settings_and_those_of_topics_can_be_plain_values() -> None:
    settings = {"log.cleanup.policy": ["compact", "delete"], "auto.create.topics.enable": False}
    with oncelog.testing.broker(settings) as process, process.admin() as admin:
        topic = process.create_topic(cleanup_policy=("delete", "compact"), preallocate=True)
        own = admin.describe_configs(ConfigResource(ResourceType.BROKER, "1"))
        found = admin.describe_configs(ConfigResource(ResourceType.TOPIC, topic))
    assert own["log.cleanup.policy"].value == "compact,delete"
    assert own["auto.create.topics.enable"].value == "false"
    assert [found[name].value for name in ("cleanup.policy", "preallocate")] == ["delete,compact", "true"]


def test_a_bad_setting_is_reported_with_the_brokers_own_words(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r"ended with exit code 1 before it was ready.*\n.*did you mean num\.partitions"
    ):
        BrokerProcess(tmp_path / "data", {"num.partition": 3}).start()


def test_a_broker_that_takes_too_long_is_said_to_take_too_long(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    with pytest.raises(RuntimeError, match=r"did not get ready within 0\.001 s"):
        process.start(timeout_s=0.001)
    assert not process.running


def test_a_folder_in_use_is_refused_with_the_pid_of_its_owner(tmp_path: Path) -> None:
    second = BrokerProcess(tmp_path / "data")
    with (
        oncelog.testing.broker(data_dir=tmp_path / "data") as first,
        pytest.raises(RuntimeError, match=re.escape(str(first.pid))),
    ):
        second.start()


def test_the_fixture_is_there_without_an_import(oncelog_broker: BrokerProcess) -> None:
    assert oncelog_broker.running


def test_a_signal_to_a_process_that_has_just_ended_is_no_error() -> None:
    """The launcher has collected it, and its exit code is not here yet."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    status, told = os.pipe()
    process = LaunchedProcess(child.pid, io.StringIO(), io.StringIO(), status)
    process.send_signal(signal.SIGCONT)
    os.write(told, b"0")
    os.close(told)
    assert process.wait(180) == 0


def test_a_fork_and_the_command_line_start_the_same(tmp_path: Path) -> None:
    """With options that a fork does not know, it is the command line."""
    settings = {"num.partitions": 3, "auto.create.topics.enable": False}
    file = tmp_path / "server.properties"
    file.write_text("log.retention.ms=60000\n")
    described = []
    for arguments in ([], ["--failpoint", "nowhere"]):
        broker = BrokerProcess(
            tmp_path / f"data{len(described)}", settings, forked=True, throws_away=True, config_file=file
        ).start(extra_arguments=arguments)
        with broker.admin() as admin:
            names = ["num.partitions", "auto.create.topics.enable", "log.retention.ms"]
            found = admin.describe_configs(ConfigResource(ResourceType.BROKER, "1"), names)
        assert broker.stop() == 0
        described.append({name: entry.value for name, entry in found.items()})
    assert described == [{"num.partitions": "3", "auto.create.topics.enable": "false", "log.retention.ms": "60000"}] * 2


def test_a_wait_ends_in_time_although_nothing_answers() -> None:
    with oncelog.testing.broker() as process:
        started_s = time.monotonic()
        with pytest.raises(TimedOut, match=r"records in missing-0 did not come within 3 s; last seen: .*missing"):
            process.wait.records("missing", 1, timeout_s=3)
        process.pause()
        with pytest.raises(TimedOut, match=r"last seen: .*no answer"):
            process.wait.group_stable("g", timeout_s=0.5)
        process.kill()
        with pytest.raises(TimedOut, match=r"last seen: .*no broker of"):
            process.wait.transaction_ended("t", timeout_s=3)
        assert time.monotonic() - started_s < 30, "calls of clients wait for 60 s"


def test_the_environment_may_be_larger_than_a_message_of_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 100_000)
    with oncelog.testing.broker() as broker:
        assert broker.create_topic()
