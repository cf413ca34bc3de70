"""Commands that go on until they are ended: broker restarts, Ctrl-C and SIGTERM."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, ClientConfig, Producer, TopicPartition
from oncelog.testing import BrokerProcess, broker
from tests.unit.cli.conftest import SETTINGS, Background, line_of
from tests.waiting import wait_until

Run = Callable[..., Result]


def say(run: Run, tmp_path: Path, topic: str, value: str) -> None:
    source = tmp_path / "line"
    source.write_text(f"{value}\n")
    assert run("produce", topic, source, "-q").exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["--group", "followers"]], ids=["alone", "as a group"])
def test_a_follower_survives_a_restart_of_its_broker(
    run: Run, own_broker: BrokerProcess, background: Background, tmp_path: Path, arguments: list[str]
) -> None:
    run("topic", "create", "orders")
    child = background("consume", "orders", "--follow", "--timeout", "5s", *arguments)
    say(run, tmp_path, "orders", "before")
    assert line_of(child) == "before\n"
    own_broker.stop()
    # It has waited for longer than its patience with one request, and says so.
    assert "waiting" in line_of(child, child.stderr)
    assert child.poll() is None
    own_broker.start()
    say(run, tmp_path, "orders", "after")
    seen = line_of(child)
    while seen == "before\n" and arguments:
        seen = line_of(child)
    assert seen == "after\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(90) == 0


def test_a_member_that_is_ended_by_sigterm_leaves_its_group(
    run: Run, servers: str, topic: str, background: Background, tmp_path: Path
) -> None:
    group = f"left-{topic}"
    child = background("consume", topic, "--follow", "--group", group)
    say(run, tmp_path, topic, "one")
    assert line_of(child) == "one\n"
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin:
        assert admin.describe_groups([group])[group].members
        child.send_signal(signal.SIGTERM)
        assert child.wait(90) == 0
        assert not admin.describe_groups([group])[group].members
    assert run("consume", topic, "--group", group).stdout == "", "what was printed was committed"


def test_a_follower_of_a_group_has_no_lag_behind_markers_and_aborted_records(
    servers: str, topic: str, admin: Admin, background: Background, transactional: Callable[..., Producer]
) -> None:
    """They are read as well, though there is nothing to print."""
    group, partition = f"caught-up-{topic}", TopicPartition(topic, 0)
    producer = transactional(f"behind-{topic}")
    child = background("consume", topic, "--follow", "--group", group, "-b", servers)
    with producer.transaction():
        producer.send(topic, b"seen")
    assert line_of(child) == "seen\n"

    def committed() -> int | None:
        found = admin.group_offsets(group).get(partition)  # a record is printed first
        return None if found is None else found.offset

    wait_until(lambda: committed() == 2, "the marker is not committed")
    producer.begin_transaction()
    producer.send(topic, b"aborted").result(60)
    producer.abort_transaction()
    wait_until(lambda: committed() == 4, "the aborted record is not committed")
    child.send_signal(signal.SIGTERM)
    assert child.wait(90) == 0


def test_a_follower_ends_soon_though_its_broker_is_gone(
    run: Run, own_broker: BrokerProcess, background: Background, tmp_path: Path
) -> None:
    run("topic", "create", "orders")
    child = background("consume", "orders", "--follow", "--group", "followers", "--timeout", "5s")
    say(run, tmp_path, "orders", "one")
    assert line_of(child) == "one\n"
    own_broker.stop()
    started_s = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(90) == 0
    assert time.monotonic() - started_s < 40, "it does not wait until its session is over, 45 s"


def test_a_stuck_follower_of_a_group_is_told_why(
    servers: str, topic: str, background: Background, transactional: Callable[..., Producer]
) -> None:
    producer = transactional(f"open-{topic}", transaction_timeout_ms=600_000)
    producer.begin_transaction()
    producer.send(topic, b"held back").result(60)
    child = background("consume", topic, "--follow", "--group", f"stuck-{topic}", "-b", servers)
    hint = (
        f"{topic}-0: an open transaction holds back 1 offset from 0 on; 'oncelog txn blocking {topic}:0 -b {servers}'"
    )
    told = line_of(child, child.stderr)
    if "no partition is assigned" in told:  # while it joins, which may take long on a busy machine
        told = line_of(child, child.stderr)
    assert hint in told
    producer.commit_transaction()
    assert line_of(child) == "held back\n"


def test_a_member_without_partitions_is_told_so(
    run: Run, servers: str, topic: str, background: Background, tmp_path: Path
) -> None:
    group = f"shared-{topic}"
    first = background("consume", topic, "--follow", "--group", group)
    say(run, tmp_path, topic, "one")
    assert line_of(first) == "one\n"
    second = background("consume", topic, "--follow", "--group", group)
    told, _, _ = select.select([first.stderr, second.stderr], [], [], 180)
    assert f"no partition is assigned to this member of {group}" in told[0].readline()


@pytest.fixture
def fresh_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """Nobody has used a transactional id."""
    with broker(SETTINGS) as process:
        monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", process.bootstrap_servers)
        with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
            admin.create_topics(["orders"])
        yield process


def commit_one(process: BrokerProcess, transactional_id: str) -> None:
    with Producer({"bootstrap.servers": process.bootstrap_servers, "transactional.id": transactional_id}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"x")


def test_watching_a_broker_without_transactions_waits_for_the_first(
    run: Run, fresh_broker: BrokerProcess, background: Background
) -> None:
    started_s = time.monotonic()
    assert run("txn", "watch", "--for", "1s", "--interval", "50ms").exit_code == 0
    assert time.monotonic() - started_s >= 1, "it has ended instead of waiting"
    child = background("txn", "watch", "-n", "1", "--interval", "50ms")
    deadline_s = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < deadline_s:
        commit_one(fresh_broker, "first")
    out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert "first" in out
