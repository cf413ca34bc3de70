"""What `oncelog consume` is asked for is what it does, and where it cannot, it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, NewTopic, Producer, TopicPartition
from tests.unit.cli.conftest import Background, line_of

Run = Callable[..., Result]
Transactional = Callable[..., Producer]


@pytest.fixture
def three(run: Run, admin: Admin, name: str, tmp_path: Path) -> str:
    """A topic of three partitions with a record each, whose value is the partition's number."""
    admin.create_topics([NewTopic(name, 3)])
    source = tmp_path / "records.jsonl"
    source.write_text("".join(json.dumps({"value": str(n), "partition": n}) + "\n" for n in range(3)))
    run("produce", name, "-F", "json", source, "-q")
    return name


def test_a_group_reads_and_commits_only_the_partitions_that_are_named(run: Run, admin: Admin, three: str) -> None:
    group = f"some-{three}"
    assert run("consume", f"{three}:1", "--group", group).stdout == "1\n"
    assert {p: found.offset for p, found in admin.group_offsets(group).items()} == {TopicPartition(three, 1): 1}
    assert run("consume", f"{three}:1", "--group", group).stdout == ""
    assert sorted(run("consume", f"{three}:0,2", "--group", group).stdout.split()) == ["0", "2"]
    assert run("consume", three, "--group", group).stdout == ""


def test_partitions_of_a_group_with_members_are_left_to_them(
    run: Run, servers: str, three: str, background: Background
) -> None:
    group = f"many-{three}"
    child = background("consume", three, "--follow", "--group", group)
    assert {line_of(child) for _ in range(3)} == {"0\n", "1\n", "2\n"}
    result = run("consume", f"{three}:1", "--group", group, "-b", servers)
    assert result.exit_code == 1
    assert f"group {group} has members" in result.stderr
    assert f"'oncelog group describe {group} -b {servers}'" in result.stderr
    reset = ["group", "reset-offsets", group, "--topic", three, "--to", "earliest"]
    refused = run(*reset, "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"group {group} has members, and they keep its offsets: stop them first" in refused.stderr
    assert run(*reset, "--dry-run").exit_code == 0


def test_a_group_behind_an_open_transaction_is_told_so(
    run: Run, servers: str, topic: str, transactional: Transactional
) -> None:
    producer = transactional(f"open-{topic}")
    with producer.transaction():
        producer.send(topic, b"seen")
    producer.begin_transaction()
    producer.send(topic, b"held back").result(60)
    result = run("consume", topic, "--group", f"stuck-{topic}", "-b", servers)
    assert result.stdout == "seen\n"
    hint = (
        f"{topic}-0: an open transaction holds back 1 offset from 2 on; 'oncelog txn blocking {topic}:0 -b {servers}'"
    )
    assert hint in result.stderr
    up_to = run("consume", topic, "--to", "3")
    assert "an open transaction holds back 1 offset" in up_to.stderr, "it lies before the end that was asked for"
    assert "holds back" not in run("consume", topic, "--to", "2").stderr


def test_a_time_behind_the_last_record_is_told(run: Run, three: str) -> None:
    result = run("consume", f"{three}:1", "--from", "2130-01-01T00:00")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert f"{three}-1 has no record of 2130-01-01T00:00 or later: its end, offset 1" in result.stderr
    reset = ("group", "reset-offsets", f"late-{three}", "--topic", f"{three}:1", "--yes")
    assert "no record of 2130-01-01T00:00 or later" in run(*reset, "--to", "2130-01-01T00:00").stderr
    assert "no record" not in run(*reset, "--to", "2020-01-01T00:00").stderr
    assert "no record" not in run("consume", three, "--from", "2020-01-01T00:00", "--to", "2130-01-01T00:00").stderr


def test_json_is_a_format_as_well(run: Run, three: str) -> None:
    assert run("consume", three, "-F", "json").stdout == run("consume", three, "-o", "json").stdout
    assert json.loads(run("consume", three, "-F", "json").stdout.splitlines()[0])["topic"] == three


def test_a_format_without_a_field_is_refused(run: Run, three: str) -> None:
    result = run("consume", three, "-F", "jason")
    assert result.exit_code == 2
    assert "'jason' prints nothing of a record" in result.stderr


def test_the_isolation_level_is_taken_from_the_settings_too(
    run: Run, topic: str, transactional: Transactional, tmp_path: Path
) -> None:
    producer = transactional(f"open-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"not committed").result(60)
    config = tmp_path / "client.properties"
    config.write_text("isolation.level=read_uncommitted\n")
    assert run("consume", topic, "--set", "isolation.level=read_uncommitted").stdout == "not committed\n"
    assert run("consume", topic, "--config", config).stdout == "not committed\n"
    assert run("consume", topic, "--config", config, "--isolation", "committed").stdout == ""
    assert run("consume", topic, "--isolation", "uncommitted").stdout == "not committed\n"
    assert run("consume", topic).stdout == ""
    both = run("consume", topic, "--set", "isolation.level=read_committed", "--isolation", "uncommitted")
    assert both.exit_code == 2
    assert "contradict" in both.stderr


@pytest.mark.parametrize(
    ("setting", "exit_code", "complaint"),
    [
        ("fetch.max.byte=3", 1, "did you mean fetch.max.bytes?"),
        ("isolation.level=committed", 1, "isolation.level"),
        ("group.id=g", 2, "--group"),
        ("auto.offset.reset=latest", 2, "--from"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_not_ignored(
    run: Run, topic: str, setting: str, exit_code: int, complaint: str
) -> None:
    result = run("consume", topic, "--set", setting)
    assert result.exit_code == exit_code
    assert complaint in result.stderr


def test_a_group_in_a_file_is_not_committed_for(run: Run, admin: Admin, three: str, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"group.id=of-another-program-{three}\n")
    assert len(run("consume", three, "--follow", "-n", "3", "--config", config).stdout.split()) == 3
    assert admin.group_offsets(f"of-another-program-{three}") == {}


def test_an_offset_that_the_log_has_not_is_said(run: Run, three: str) -> None:
    result = run("consume", f"{three}:0", "--from", "99999")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{three}-0 has offsets 0 to 1: 1 instead of 99999" in result.stderr
    assert f"{three}-0 has offsets 0 to 1: 1 instead of 7" in run("consume", f"{three}:0", "--to", "7").stderr
    assert run("consume", f"{three}:0", "--from", "0", "--to", "1").stderr == ""


def test_an_offset_that_was_deleted_is_said(run: Run, admin: Admin, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_text("0\n1\n2\n")
    run("produce", topic, source, "-q")
    admin.delete_records({TopicPartition(topic, 0): 2})
    result = run("consume", topic, "--from", "1")
    assert result.stdout == "2\n"
    assert f"{topic}-0 has offsets 2 to 3: 2 instead of 1" in result.stderr


def test_a_follower_from_behind_the_last_stable_offset_begins_where_it_was_told(
    run: Run, topic: str, transactional: Transactional, background: Background
) -> None:
    producer = transactional(f"open-{topic}", transaction_timeout_ms=600_000)
    producer.begin_transaction()
    for value in (b"0", b"1", b"2"):
        producer.send(topic, value).result(60)
    child = background("consume", topic, "--from", "2", "--follow")
    assert "holds back" in line_of(child, child.stderr)
    producer.commit_transaction()
    assert line_of(child) == "2\n"


def test_the_last_records_are_counted_without_markers_and_aborted_ones(
    run: Run, topic: str, transactional: Transactional
) -> None:
    producer = transactional(f"counted-{topic}")
    for number in range(5):
        with producer.transaction():
            producer.send(topic, str(number).encode())
        producer.begin_transaction()
        for _ in range(40):
            producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
    assert run("consume", topic, "--from=-2").stdout.split() == ["3", "4"]
    assert run("consume", topic, "--from=-5").stdout.split() == ["0", "1", "2", "3", "4"]
    assert run("consume", topic, "--from=-9").stdout.split() == ["0", "1", "2", "3", "4"]
    assert run("consume", topic, "--from=-0").stdout == ""
    uncommitted = run("consume", topic, "--from=-2", "--isolation", "uncommitted").stdout.split()
    assert uncommitted == ["aborted", "aborted"]


def test_the_last_records_are_those_of_each_partition(run: Run, three: str) -> None:
    assert run("consume", three, "--from=-1", "-F", "{partition}").stdout.split() == ["0", "1", "2"]
