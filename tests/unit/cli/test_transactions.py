"""`oncelog txn`: what is open, what it holds back, what happened, and how to end it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from oncelog.client import Admin, ClientConfig, Producer, ProducerFenced, TopicPartition
from oncelog.protocol.batch import Record, build_batch
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from oncelog.testing import BrokerProcess, broker
from tests.unit.cli.conftest import SETTINGS
from tests.waiting import wait_until

Run = Callable[..., Result]
Transactional = Callable[..., Producer]


def open_one(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value).result(60)


def test_open_transactions_are_listed_with_their_age(run: Run, transactional: Transactional, topic: str) -> None:
    open_one(transactional(f"listed-{topic}"), topic, b"x")
    done = transactional(f"listed-done-{topic}")
    with done.transaction():
        done.send(topic, b"y")
    rows = {r["transactional_id"]: r for r in json.loads(run("txn", "list", "-o", "json").stdout)}
    assert rows[f"listed-{topic}"]["state"] == "Ongoing"
    assert 0 <= rows[f"listed-{topic}"]["age_ms"] < 60_000
    assert rows[f"listed-done-{topic}"]["state"] == "CompleteCommit"
    only_open = [r["transactional_id"] for r in json.loads(run("txn", "list", "--open", "-o", "json").stdout)]
    assert f"listed-{topic}" in only_open
    assert f"listed-done-{topic}" not in only_open
    assert f"listed-{topic}" not in run("txn", "list", "--older-than", "1h").stdout


def test_a_transaction_is_described(run: Run, transactional: Transactional, topic: str) -> None:
    producer = transactional(f"described-{topic}", transaction_timeout_ms=45_000)
    open_one(producer, topic, b"x")
    (row,) = json.loads(run("txn", "describe", f"described-{topic}", "-o", "json").stdout)
    assert row["state"] == "Ongoing"
    assert row["timeout_ms"] == 45_000
    assert row["partitions"] == [f"{topic}-0"]
    text = run("txn", "describe", f"described-{topic}").stdout
    assert "time-out    45.0 s" in text
    assert "aborted by its coordinator in" in text


def test_an_unknown_id_is_answered_with_near_ones(run: Run, transactional: Transactional, topic: str) -> None:
    transactional(f"near-{topic}")
    result = run("txn", "describe", f"neer-{topic}")
    assert result.exit_code == 1
    assert f"did you mean near-{topic}" in result.stderr


def test_blocking_names_the_culprit_and_the_command_that_ends_it(
    run: Run, transactional: Transactional, topic: str
) -> None:
    producer = transactional(f"slow-{topic}", transaction_timeout_ms=60_000)
    open_one(producer, topic, b"held", b"held too")
    other = transactional(f"quick-{topic}")
    with other.transaction():
        for _ in range(3):
            other.send(topic, b"waiting")
    (report,) = json.loads(run("txn", "blocking", topic, "-o", "json").stdout)
    assert (report["last_stable_offset"], report["end_offset"], report["records_waiting"]) == (0, 6, 5)
    (culprit,) = report["blocking"]
    assert culprit["transactional_id"] == f"slow-{topic}"
    assert culprit["producer_epoch"] == 0
    assert culprit["timeout_ms"] == 60_000
    assert culprit["remedy"] == f"oncelog txn fence slow-{topic}"
    text = run("txn", "blocking", f"{topic}:0").stdout
    assert f"{topic}-0: the last stable offset is 0, the end is 6: 5 records wait" in text
    assert f"to end it now: oncelog txn fence slow-{topic}" in text
    assert run(*culprit["remedy"].split()[1:], "--yes").exit_code == 0
    assert "nothing is held back" in run("txn", "blocking", topic).stdout
    assert run("consume", topic).stdout == "waiting\n" * 3
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()


def test_fencing_asks_first(run: Run, transactional: Transactional, topic: str) -> None:
    transactional(f"asked-{topic}")
    refused = run("txn", "fence", f"asked-{topic}")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicPartition]:
    """A partition whose log has a transactional batch that no coordinator knows of, put there between two starts."""
    place = TopicPartition("hung", 0)
    process = BrokerProcess(tmp_path / "data", SETTINGS)
    try:
        process.start()
        leave_hanging(process, place)
        process.start()
        monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", process.bootstrap_servers)
        yield place
    finally:
        process.stop()


def leave_hanging(process: BrokerProcess, place: TopicPartition) -> None:
    """Ends with the broker stopped."""
    with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
        admin.create_topics([place.topic])
    with Producer({"bootstrap.servers": process.bootstrap_servers}) as producer:
        producer.send(place.topic, b"first")
    process.stop()
    batch = build_batch(
        [Record(0, 0, None, b"stuck")],
        timestamp_ms=int(time.time() * 1000),
        base_offset=1,
        leader_epoch=0,
        producer_id=7777,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    with (process.data_dir / str(place) / f"{0:020d}.log").open("ab") as log:
        log.write(batch)
    # As if it had been there at the stop: a start after a crash would abort what no coordinator knows.
    (process.data_dir / ".kafka_cleanshutdown").unlink()
    LogDir.open(process.data_dir, node_id=1, config_for=lambda _: LogConfig(), now_ms=0).close({})


def test_a_hanging_transaction_is_found_and_aborted(run: Run, hanging: TopicPartition) -> None:
    result = run("txn", "hanging", "--older-than", "0s")
    assert result.exit_code == 1
    assert f"{hanging} from offset 1: producer 7777 epoch 0" in result.stdout
    assert "oncelog txn abort hung:0 --start-offset 1" in result.stdout
    assert "HANGING: no coordinator knows producer 7777" in run("txn", "blocking", "hung").stdout
    assert run("txn", "hanging").exit_code == 0, "too young to be sure"
    wrong = run("txn", "abort", "hung:0", "--start-offset", "5", "--yes")
    assert "no transaction of hung-0 begins at offset 5; open ones: 1" in wrong.stderr
    assert run("txn", "abort", "hung:0", "--start-offset", "1", "--yes").exit_code == 0
    assert "nothing is held back" in run("txn", "blocking", "hung").stdout
    assert run("txn", "hanging", "--older-than", "0s").exit_code == 0


def test_the_history_of_an_id_has_every_change(run: Run, transactional: Transactional, topic: str) -> None:
    producer = transactional(f"history-{topic}")
    with producer.transaction():
        producer.send(topic, b"x")
    producer.begin_transaction()
    producer.send(topic, b"y").result(60)
    producer.abort_transaction()
    events = json.loads(run("txn", "history", f"history-{topic}", "-o", "json").stdout)
    assert [event["what"] for event in events] == [
        "initialised",
        "began",
        "commit decided",
        "committed",
        "began",
        "abort decided",
        "aborted",
    ]
    assert [event["time_ms"] for event in events] == sorted(event["time_ms"] for event in events)
    assert events[1]["partitions"] == [f"{topic}-0"]
    text = run("txn", "history", f"history-{topic}").stdout
    assert text.splitlines()[0].split() == ["TIME", "AFTER", "WHAT", "PRODUCER", "PARTITIONS"]
    assert run("txn", "history", "nobody").exit_code == 1


def test_a_time_out_is_called_one(run: Run, transactional: Transactional, topic: str) -> None:
    open_one(transactional(f"late-{topic}", transaction_timeout_ms=200), topic, b"x")
    wait_until(lambda: "aborted" in run("txn", "history", f"late-{topic}").stdout)
    whats = [e["what"] for e in json.loads(run("txn", "history", f"late-{topic}", "-o", "json").stdout)]
    assert whats == ["initialised", "began", "timed out", "aborted"]


def test_watching_in_a_pipe_prints_events(servers: str, transactional: Transactional, topic: str) -> None:
    producer = transactional(f"watched-{topic}")
    command = [sys.executable, "-m", "oncelog", "txn", "watch", "-n", "3", "-o", "json", "--interval", "50ms"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    deadline_s = time.monotonic() + 60
    while child.poll() is None:
        assert time.monotonic() < deadline_s
        with producer.transaction():
            producer.send(topic, b"x")
    assert child.stdout is not None
    events = [json.loads(line) for line in child.stdout.read().splitlines()]
    child.stdout.close()
    assert len(events) == 3
    assert {event["transactional_id"] for event in events} == {f"watched-{topic}"}
    assert {event["what"] for event in events} <= {"began", "commit decided", "committed"}


def test_watching_in_a_terminal_draws_a_live_screen(servers: str, transactional: Transactional, topic: str) -> None:
    producer = transactional(f"screen-{topic}")
    main_end, child_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    command = [sys.executable, "-m", "oncelog", "txn", "watch", "-n", "6", "--interval", "50ms"]
    child = subprocess.Popen(command, stdin=child_end, stdout=child_end, stderr=child_end, env=environment)
    os.close(child_end)
    seen = b""
    deadline_s = time.monotonic() + 60
    while child.poll() is None:
        assert time.monotonic() < deadline_s
        with producer.transaction():
            producer.send(topic, b"x")
        seen += read_available(main_end)
    seen += read_available(main_end)
    os.close(main_end)
    text = seen.decode(errors="replace")
    assert child.returncode == 0, text
    for part in ("open transactions", "per second", "committed", f"screen-{topic}"):
        assert part in text
    assert "\x1b[?1049h" in text, "the screen is a page of its own"
    assert "\x1b[?1049l" in text, "and is left again"


def read_available(descriptor: int) -> bytes:
    data = b""
    while select.select([descriptor], [], [], 0.05)[0]:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            break
        if not part:
            break
        data += part
    return data


def test_a_broker_that_takes_no_markers_from_clients_says_how_to_let_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker() as process:
        monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", process.bootstrap_servers)
        with Producer({"bootstrap.servers": process.bootstrap_servers, "transactional.id": "x"}) as producer:
            producer.init_transactions()
            open_one(producer, "t", b"x")
            result = run("txn", "abort", "t:0", "--start-offset", "0", "--yes")
            producer.abort_transaction()
    assert result.exit_code == 1
    assert "--set oncelog.cluster.action.enable=true" in result.stderr
