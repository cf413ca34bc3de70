"""The same commands on Apache Kafka, and its folders inspected while it runs and after it has stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Admin, ClientConfig, Producer, TopicPartition
from oncelog.monitoring.snapshot import Poller
from oncelog.monitoring.timeline import read_timeline
from oncelog.monitoring.transaction_spans import TransactionOutcome
from peers.kafka.kafka import KafkaServer, kafka_available
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.conformance,
    # In CI the comparison must run: there it is not skipped, and fails to start.
    pytest.mark.skipif(kafka_available() is not None and os.environ.get("CI") != "true", reason=str(kafka_available())),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    settings = {
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
    }
    with KafkaServer(tmp_path_factory.mktemp("kafka"), properties=settings) as server:
        yield server


@pytest.fixture
def run(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("ONCELOG_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert isinstance(result.exception, SystemExit | None), (result.exception, result.output)
        return result

    return call


def check_snapshot(servers: str) -> None:
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin:
        snapshot = Poller(admin).poll()
        timeline = read_timeline(admin, TopicPartition("orders", 0))
    assert [one.transactional_id for held in snapshot.held_back for one in held.blocking] == ["slow"]
    assert snapshot.hanging(older_than_ms=0) == []
    states = {one.transactional_id: one.listing.state for one in snapshot.transactions}
    assert states == {"slow": "Ongoing", "import": "CompleteCommit"}
    (billing,) = [state.group for state in snapshot.groups if state.listing.group_id == "billing"]
    assert billing is not None
    assert billing.lag == 1
    assert timeline.spans[-1].outcome is TransactionOutcome.OPEN
    assert [one.transactional_id for one in timeline.open] == ["slow"]


def test_a_day_with_apache_kafka(run: Callable[..., Result], kafka: KafkaServer, tmp_path: Path) -> None:
    assert run("topic", "create", "orders", "-p", 2, "--topic-config", "retention.ms=-1").exit_code == 0
    # Apache Kafka's controller answers before its broker knows, and a commit or an abort before it is seen.
    wait_until(lambda: run("topic", "describe", "orders").exit_code == 0, "the topic is there")
    (described,) = json.loads(run("topic", "describe", "orders", "-o", "json").stdout)
    assert described["settings"]["retention.ms"] == "-1"
    assert json.loads(run("cluster", "info", "-o", "json").stdout)["features"]["transaction.version"] == 2

    lines = tmp_path / "lines"
    lines.write_text("a:1\nb:2\nc:3\n")
    imported = run("produce", "orders", lines, "-K:", "--transactional-id", "import", "-q")
    assert imported.exit_code == 0, imported.stderr
    wait_until(
        lambda: len(run("consume", "orders", "-F", "{key}={value}").stdout.split()) == 3, "all three records are shown"
    )
    assert sorted(run("consume", "orders", "-F", "{key}={value}").stdout.split()) == ["a=1", "b=2", "c=3"]
    assert len(run("consume", "orders", "--group", "billing").stdout.split()) == 3
    (group,) = json.loads(run("group", "describe", "billing", "-o", "json").stdout)
    assert sum(row["lag"] for row in group["offsets"]) == 0

    held = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "slow"})
    held.init_transactions()
    held.begin_transaction()
    held.send("orders", b"held", partition=0).result(30)
    (report,) = json.loads(run("txn", "blocking", "orders", "-o", "json").stdout)
    assert report["blocking"][0]["transactional_id"] == "slow"
    assert report["records_waiting"] == 1
    check_snapshot(kafka.bootstrap_servers)
    assert run("txn", "hanging", "--older-than", "0s").exit_code == 0
    assert "Ongoing" in run("txn", "describe", "slow").stdout
    assert run("txn", "fence", "slow", "--yes").exit_code == 0
    wait_until(lambda: "nothing is held back" in run("txn", "blocking", "orders").stdout, "nothing is held back")
    held.close(timeout_ms=1_000)

    whats = [event["what"] for event in json.loads(run("txn", "history", "import", "-o", "json").stdout)]
    assert whats[0] == "initialised"
    assert whats[-3:] in (["began", "commit decided", "committed"], ["added partitions", "commit decided", "committed"])
    assert json.loads(run("txn", "history", "slow", "-o", "json").stdout)[-1]["what"] == "initialised"

    live = run("log", "timeline", kafka.data_dir / "orders-0", "-o", "json")
    outcomes = [t["outcome"] for t in json.loads(live.stdout)[0]["transactions"] if t["transactional_id"] == "slow"]
    assert outcomes == ["aborted"]
    kafka.stop()
    verified = run("log", "verify", kafka.data_dir)
    assert verified.exit_code == 0, verified.stdout
