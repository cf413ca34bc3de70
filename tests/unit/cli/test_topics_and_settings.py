"""`oncelog topic`, `config`, `cluster` and `group`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, Producer, TopicPartition

Run = Callable[..., Result]


def test_a_topic_from_its_creation_to_its_end(run: Run, name: str) -> None:
    assert run("topic", "create", name, "-p", 3, "--topic-config", "retention.ms=1000").stdout == f"created {name}\n"
    listed = json.loads(run("topic", "list", "-o", "json").stdout)
    assert {"topic": name, "partitions": 3, "replicas": 1, "internal": False} in listed
    assert name in run("topic", "list").stdout
    (described,) = json.loads(run("topic", "describe", name, "-o", "json").stdout)
    assert described["settings"] == {"retention.ms": "1000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    run("topic", "alter", name, "-p", 4, "--topic-config", "cleanup.policy=compact", "--unset", "retention.ms")
    (described,) = json.loads(run("topic", "describe", name, "-o", "json").stdout)
    assert described["settings"] == {"cleanup.policy": "compact"}
    assert len(described["partitions"]) == 4
    assert run("topic", "delete", name, "--yes").exit_code == 0
    assert name not in run("topic", "list").stdout


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(run: Run, topic: str) -> None:
    refused = run("topic", "create", topic)
    assert refused.exit_code == 1
    assert "TOPIC_ALREADY_EXISTS" in refused.stderr
    fine = run("topic", "create", topic, "--if-not-exists")
    assert (fine.exit_code, fine.stdout) == (0, f"{topic} exists already\n")
    mixed = run("topic", "create", topic, f"{topic}-new", "--if-not-exists", "-o", "json")
    assert json.loads(mixed.stdout) == [
        {"topic": topic, "created": False},
        {"topic": f"{topic}-new", "created": True},
    ]


def test_an_unknown_topic_is_answered_with_near_names(run: Run, admin: Admin) -> None:
    admin.create_topics(["customers"], if_not_exists=True)
    for command in (["topic", "describe", "custmers"], ["consume", "custmers"], ["txn", "blocking", "custmers"]):
        result = run(*command)
        assert result.exit_code == 1
        assert "there is no topic custmers; did you mean customers?" in result.stderr


def test_deleting_without_a_terminal_needs_yes(run: Run, topic: str) -> None:
    refused = run("topic", "delete", topic)
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert topic in run("topic", "list").stdout


def test_nothing_to_alter_is_a_usage_error(run: Run, topic: str) -> None:
    assert run("topic", "alter", topic).exit_code == 2


def test_settings_are_shown_changed_and_reset(run: Run, topic: str) -> None:
    assert json.loads(run("config", "show", "topic", topic, "-o", "json").stdout) == []
    run("config", "set", "topic", topic, "retention.ms=5000", "segment.ms=60000")
    shown = json.loads(run("config", "show", "topic", topic, "-o", "json").stdout)
    assert {entry["name"]: entry["value"] for entry in shown} == {"retention.ms": "5000", "segment.ms": "60000"}
    run("config", "unset", "topic", topic, "retention.ms", "segment.ms")
    assert "all settings have their defaults" in run("config", "show", "topic", topic).stderr
    everything = json.loads(run("config", "show", "topic", topic, "--all", "-o", "json").stdout)
    assert len(everything) > 10


def test_an_unknown_setting_is_answered_with_the_nearest(run: Run, topic: str) -> None:
    result = run("config", "set", "topic", topic, "retention.mss=5000")
    assert result.exit_code == 1
    assert "did you mean retention.ms?" in result.stderr


def test_settings_of_groups_are_refused_in_a_sentence(run: Run) -> None:
    key = "consumer.session.timeout.ms"
    for command, setting in (("show", []), ("set", [f"{key}=50000"]), ("unset", [key])):
        result = run("config", command, "group", "g", *setting)
        assert result.exit_code == 1
        assert "Oncelog has no settings of groups" in result.stderr


def test_a_broker_is_named_by_its_number(run: Run) -> None:
    assert run("config", "show", "broker", "1").exit_code == 0
    result = run("config", "show", "broker", "first")
    assert result.exit_code == 2
    assert "not the number of a broker" in result.stderr


def test_a_broker_that_is_not_there_is_not_waited_for(run: Run) -> None:
    for command in (["show"], ["set"], ["unset"]):
        started_s = time.monotonic()
        setting = [] if command == ["show"] else ["log.retention.ms=1"]
        result = run("config", *command, "broker", "2", *setting, "--timeout", "5m")
        assert result.exit_code == 1
        assert "there is no broker 2; there is 1" in result.stderr
        assert "--timeout" not in result.stderr
        assert time.monotonic() - started_s < 60, "the time-out is 5 min"


def test_the_cluster_tells_its_brokers_and_features(
    run: Run, servers: str, topic: str, transactional: Callable[..., Producer]
) -> None:
    transactional(f"id-{topic}")  # for an internal topic
    facts = json.loads(run("cluster", "info", "-o", "json").stdout)
    assert [broker["address"] for broker in facts["brokers"]] == [servers]
    assert facts["features"]["transaction.version"] == 2
    text = run("cluster", "info").stdout
    assert servers in text
    assert f"{facts['internal_partitions']} more of internal topics" in text
    led = sum(broker["leads"] for broker in facts["brokers"])
    assert facts["partitions"] + facts["internal_partitions"] == led
    described = json.loads(run("cluster", "describe", "-o", "json").stdout)
    assert described["quorum"]["leader"] == 1
    assert (described["without_leader"], described["under_replicated"]) == ([], [])
    assert [(one["broker"], one["address"], one["out_of_sync"]) for one in described["brokers"]] == [(1, servers, 0)]
    assert servers in run("cluster", "describe").stdout


def test_folders_of_brokers_are_shown_with_what_is_in_them(run: Run, topic: str) -> None:
    (folder,) = json.loads(run("log", "dirs", "-o", "json").stdout)
    assert folder["broker"] == 1 and f"{topic}-0" in folder["partitions"]
    assert folder["bytes"] == sum(folder["partitions"].values())
    assert f"{topic}-0" in run("log", "dirs", "--partitions").stdout
    assert folder["folder"] in run("log", "dirs").stdout


@pytest.mark.parametrize(
    "arguments",
    [["--replicas", "1"], ["t:0"], ["t:0", "--replicas", "1", "--cancel"], ["{topic}:0", "--replicas", "x"]],
)
def test_moves_that_say_not_enough_are_refused(run: Run, topic: str, arguments: list[str]) -> None:
    done = run("cluster", "reassign", *(argument.format(topic=topic) for argument in arguments))
    assert done.exit_code == 2 and "--replicas" in done.output


def test_a_running_broker_is_not_unregistered(run: Run) -> None:
    done = run("cluster", "unregister", "1", "--yes")
    assert done.exit_code != 0 and "stop it first" in done.output


def test_offsets_of_a_group_are_described_moved_and_deleted(run: Run, admin: Admin, topic: str, name: str) -> None:
    group = f"group-{name}"
    run("produce", topic, "-q", __file__)
    (described,) = json.loads(run("topic", "describe", topic, "-o", "json").stdout)
    end = described["partitions"][0]["end"]
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 3})
    (shown,) = json.loads(run("group", "describe", group, "-o", "json").stdout)
    assert shown["offsets"] == [
        {"topic": topic, "partition": 0, "committed": 3, "last_stable": end, "end": end, "lag": end - 3,
         "visible_lag": end - 3, "held_back": 0, "member": None}
    ]  # fmt: skip
    assert f"{topic}          0          3" in run("group", "describe", group).stdout
    for target, expected in (("latest", end), ("-5", end - 5), ("+2", end - 3), ("earliest", 0), ("7", 7),
                             ("999999", end), ("2020-01-01", 0), ("2100-01-01", end)):  # fmt: skip
        assert run("group", "reset-offsets", group, "--topic", topic, f"--to={target}", "--yes").exit_code == 0
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == expected, target
    run("group", "reset-offsets", group, "--topic", topic, "--to", "earliest", "--dry-run")
    assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == end
    assert group in run("group", "list").stdout
    assert group in run("group", "list", "--state", "empty").stdout
    assert "there are no groups in state Dead" in run("group", "list", "--state", "Dead").stderr
    assert run("group", "delete", group, "--yes").exit_code == 0
    gone = run("group", "describe", group)
    assert gone.exit_code == 1
    assert f"there is no group {group}" in gone.stderr


def test_a_file_that_asks_for_half_of_a_security_is_refused_by_every_kind_of_command(
    run: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    commands = [["topic", "list"], ["produce", topic, str(file)], ["consume", topic], ["txn", "list"]]
    for line in ("security.protocol=TLS", "sasl.mechanism=PLAIN", "ssl.truststore.location=/x"):
        file.write_text(f"{line}\n")
        for command in commands:
            result = run(*command, "--config", file)
            assert result.exit_code == 1, command
            assert "security.protocol" in result.stderr
            assert line.split("=")[0] in result.stderr
    refused = run("topic", "list", "--set", "security.protocol=SASL_SSL")
    assert (refused.exit_code, "sasl.mechanism" in refused.stderr) == (1, True)


@pytest.mark.parametrize("name", ["securty.protocol", "security_protocol", "Security.Protocol"])
def test_a_file_whose_security_is_misspelt_is_not_talked_plaintext_for(run: Run, tmp_path: Path, name: str) -> None:
    """Names in a file that commands do not know are for other tools, as they are without this one."""
    file = tmp_path / "client.properties"
    file.write_text(f"other.tool=1\nadmin.security.protocol=SSL\n{name}=SASL_SSL\n")
    result = run("topic", "list", "--config", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{name}; did you mean security.protocol?" in result.stderr
    file.write_text("other.tool=1\nadmin.security.protocol=SSL\nlistener.security.protocol.map=A:SSL\n")
    assert run("topic", "list", "--config", file).exit_code == 0
    file.write_text(f"{name}=SASL_SSL\nsecurity.protocol=PLAINTEXT\n")
    assert run("topic", "list", "--config", file).exit_code == 0


def test_plaintext_is_taken_from_a_file_and_from_the_command_line(run: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\nssl.truststore.location=/unused\n")
    for command in (["topic", "list"], ["produce", topic, str(file)], ["consume", topic]):
        assert run(*command, "--config", file).exit_code == 0
        assert run(*command, "--set", "security.protocol=PLAINTEXT").exit_code == 0


@pytest.mark.parametrize("command", [["group", "list"], ["txn", "list"]])
def test_a_state_that_there_is_not_is_a_usage_error(run: Run, command: list[str]) -> None:
    result = run(*command, "--state", "Bogus")
    assert result.exit_code == 2
    assert "'Bogus' is not a state; there are " in result.stderr
    assert "Empty" in result.stderr


def test_an_offset_that_the_log_has_not_is_set_to_the_nearest_and_said(run: Run, topic: str, admin: Admin) -> None:
    run("produce", topic, "-q", __file__)
    group = f"moved-{topic}"
    end = json.loads(run("topic", "describe", topic, "-o", "json").stdout)[0]["partitions"][0]["end"]
    result = run("group", "reset-offsets", group, "--topic", topic, "--to", "5000", "--yes")
    assert f"{topic}-0 has offsets 0 to {end}: {end} instead of 5000" in result.stderr
    result = run("group", "reset-offsets", group, "--topic", topic, "--to=-6000", "--dry-run")
    assert f"{topic}-0 has offsets 0 to {end}: 0 instead of {end - 6000}" in result.stderr
    result = run("group", "reset-offsets", group, "--topic", topic, "--to", "2", "--yes")
    assert "instead of" not in result.stderr


def test_a_group_behind_an_open_transaction_has_a_lag_that_is_held_back(
    run: Run, servers: str, topic: str, transactional: Callable[..., Producer]
) -> None:
    group = f"stuck-{topic}"
    producer = transactional(f"open-{topic}")
    with producer.transaction():
        producer.send(topic, b"seen")
    assert run("consume", topic, "--group", group).stdout == "seen\n"
    producer.begin_transaction()
    for _ in range(3):
        producer.send(topic, b"held back").result(60)
    (described,) = json.loads(run("group", "describe", group, "-o", "json").stdout)
    (row,) = described["offsets"]
    assert (row["committed"], row["last_stable"], row["end"]) == (2, 2, 5)
    assert (row["lag"], row["visible_lag"], row["held_back"]) == (3, 0, 3)
    shown = run("group", "describe", group, "-b", servers)
    assert shown.stdout.splitlines()[1].split("  ")[0] == "TOPIC"
    for column in ("COMMITTED", "LAST STABLE", "END", "LAG", "HELD BACK"):
        assert column in shown.stdout
    hint = (
        f"{topic}-0: an open transaction holds back 3 offsets from 2 on; 'oncelog txn blocking {topic}:0 -b {servers}'"
    )
    assert hint in shown.stderr
