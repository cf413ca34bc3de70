"""What is given wrongly is refused by the name that was given, and nothing is said to be done that was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Admin
from oncelog.client.admin_configs import ConfigResource, ResourceType
from oncelog.client.admin_topics import NewTopic
from oncelog.core.errors import KafkaError

Run = Callable[..., Result]


@pytest.mark.parametrize("command", ["config unset topic {topic}", "topic alter {topic} --unset"])
def test_a_setting_that_does_not_exist_is_not_said_to_have_its_default_again(
    run: Run, admin: Admin, topic: str, command: str
) -> None:
    words = command.format(topic=topic).split()
    done = run(*words, "retention.mss")
    assert done.exit_code == 1
    assert "there is no setting retention.mss; did you mean retention.ms" in done.output
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin.alter_configs(resource, set={"retention.ms": "1000"})
    assert "retention.ms has its default again" in run(*words, "retention.ms").output
    assert admin.describe_configs(resource)["retention.ms"].value == "604800000"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("topic list --timeout soon", "--timeout: 'soon' is not a duration"),
        ("topic list --timeout 0", "--timeout: '0' is too short"),
        ("topic list --timeout inf", "--timeout: 'inf' is too long"),
        ("topic list --timeout 1e400", "--timeout: '1e400' is too long"),
        ("topic list --timeout 40000d", "--timeout: '40000d' is too long"),
        ("topic list --timeout nan", "--timeout: 'nan' is not a duration"),
        ("txn list --older-than inf", "--older-than: 'inf' is too long"),
        ("produce t --key-delimiter=", "--key-delimiter: it is empty"),
        ("produce t --key-delimiter \\", "--key-delimiter: '\\\\': \\ at end of string"),
        ("produce t --null \\u20ac", "--null: '\\\\u20ac': only bytes can be escaped"),
        ("consume t --delimiter \\x", "--delimiter: '\\\\x': truncated"),
        ("consume t --format {value}\\x", "--format: '{value}\\\\x': truncated"),
        ("txn list --older-than x", "--older-than: 'x' is not a duration"),
        ("txn hanging --older-than x", "--older-than: 'x' is not a duration"),
        ("txn watch --for x", "--for: 'x' is not a duration"),
        ("console --listen 127.0.0.1:0 --hanging-after x", "--hanging-after: 'x' is not a duration"),
        ("acl explain User:a reed --topic t", "for 'OPERATION': 'reed' is not one of"),
    ],
)
def test_an_option_with_a_wrong_value_is_named(run: Run, command: str, complaint: str) -> None:
    done = run(*command.split())
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize(
    "given", ["--offsets 1..2", "--times -10m..", "--producer 1", "--transactional-id x", "-o json"]
)
def test_what_a_dump_like_kafkas_does_not_heed_is_refused(tmp_path: Path, given: str) -> None:
    done = CliRunner().invoke(cli, ["log", "dump", str(tmp_path), "--format", "kafka", *given.split()])
    assert done.exit_code == 2
    assert "--format kafka prints whole files" in done.output


def test_a_console_that_could_log_no_change_is_not_started(run: Run, tmp_path: Path) -> None:
    done = run("console", "--listen", "127.0.0.1:0", "--allow-changes", "--audit-log", tmp_path / "none" / "audit")
    assert done.exit_code == 2
    assert "audit cannot be written: No such file or directory" in done.output


def test_a_demo_is_not_begun_with_what_cannot_be() -> None:
    for given, complaint in (
        (("--master", "nonsense"), "'nonsense': write local[2,4], spark://HOST:PORT or yarn"),
        (("--kills", "executor", "--master", "local[2]"), "the executor is not started here with --master"),
    ):
        done = CliRunner().invoke(cli, ["demo", *given])
        assert done.exit_code == 2
        assert complaint in done.output


def test_a_partition_that_is_not_there_is_refused_before_its_leader_is_asked(run: Run, topic: str) -> None:
    refused = run("txn", "abort", f"{topic}:9", "--start-offset", 0, "--yes", "--timeout", "5s")
    assert (refused.exit_code, "there is no 9" in refused.output) == (1, True), refused.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["topic", "create", "wide", "--partitions", 2**32], "CreateTopicsRequest: a number is out of range"),
        (["topic", "create", "wide", "--replication-factor", 2**15], "CreateTopicsRequest: a number is out of range"),
        (["topic", "create", "\udcff"], "CreateTopicsRequest: a text is not UTF-8"),
        (["topic", "create", "wide", "--set", "client.id=\udcff"], "client.id: the text is not UTF-8"),
    ],
)
def test_what_no_request_has_room_for_is_an_error_of_that_request_alone(
    run: Run, admin: Admin, topic: str, words: list[object], complaint: str
) -> None:
    refused = run(*words)
    assert (refused.exit_code, complaint in refused.output) == (1, True), refused.output
    with pytest.raises(KafkaError, match="out of range"):
        admin.create_topics([NewTopic("wide", num_partitions=2**32)])
    assert topic in admin.list_topics()


def test_a_transaction_may_not_take_longer_than_brokers_allow(run: Run, topic: str) -> None:
    refused = run("produce", topic, "--transactional-id", "slow", "--set", "transaction.timeout.ms=999999999")
    assert refused.exit_code == 1
    assert "above transaction.max.timeout.ms of the brokers" in refused.output


def test_records_that_are_not_there_are_not_said_to_be_deleted(run: Run, topic: str) -> None:
    for place in ("0", "latest"):
        done = run("topic", "delete-records", topic, "--before", place, "--yes")
        assert (done.exit_code, "there is nothing to delete" in done.output) == (0, True), done.output


def test_an_address_of_ipv6_is_told_as_it_is_typed(run: Run) -> None:
    assert "no broker answers at [::1]:1: " in run("topic", "list", "-b", "[::1]:1").output


def test_a_refused_setting_is_told_with_what_it_is_of(run: Run, topic: str) -> None:
    for kind, of in (("broker", "1"), ("topic", topic)):
        refused = run("config", "set", kind, of, "nonsense=1")
        assert f"settings of {kind} {of}: Unknown" in refused.output, refused.output
