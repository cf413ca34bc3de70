"""Software of the README's table, unmodified. Pipelines write their output and their offsets in one transaction.

Runs with `make test-ecosystem`, which fetches what is needed. What a machine has no tool chain for is skipped with a
word; in CI (`CI=true`) that is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Consumer, Producer
from oncelog.core.ids import TopicPartition
from oncelog.testing import BrokerProcess, broker
from oncelog.testing.zookeeper import free_ports
from tests.ecosystem import toolchains
from tests.ecosystem.toolchains import Missing
from tests.waiting import wait_until

COUNT = 20
VALUES = [f"order {number}" for number in range(COUNT)]
HERE = Path(__file__).parent

WAIT_S = 300
REBALANCING = 409

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("ONCELOG_ECOSYSTEM"), reason="other people's software is fetched by `make test-ecosystem`"
    ),
    pytest.mark.timeout(3600),  # registries are slow at times
]


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerProcess]:
    with broker({"auto.create.topics.enable": "false"}) as process:
        yield process


def available(fetch: Callable[[], Any]) -> Any:
    try:
        return fetch()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"in CI every tool chain must be there: {missing}")
        pytest.skip(str(missing))


def filled_topic(running: BrokerProcess) -> str:
    topic = running.create_topic("source")
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush()
    return topic


def committed_values(running: BrokerProcess, topic: str, count: int = COUNT) -> list[str]:
    """All that a read_committed reader gets, up to the end of the topic."""
    settings = {"bootstrap.servers": running.bootstrap_servers, "isolation.level": "read_committed"}
    place = TopicPartition(topic, 0)
    running.wait.records(topic, count, timeout_s=WAIT_S)
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        (end,) = consumer.end_offsets([place]).values()
        values: list[str] = []
        while consumer.position(place) < end:
            values += [(record.value or b"").decode() for record in consumer.poll(1000)]
    return values


def run_pipeline(running: BrokerProcess, command: list[str], group: str, *more: str) -> None:
    source, target = filled_topic(running), running.create_topic("target")
    arguments = [running.bootstrap_servers, source, target, group, str(COUNT), *more]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("done\n")
    assert running.wait.offset_committed(group, source, COUNT, timeout_s=WAIT_S) == COUNT
    assert sorted(committed_values(running, target)) == sorted(value.upper() for value in VALUES)


def test_franz_go(running: BrokerProcess) -> None:
    run_pipeline(running, available(lambda: toolchains.go_program("franz")), "franz-go")
    assert running.wait.transaction_ended("franz-go", timeout_s=WAIT_S) == "CompleteCommit"


def test_sarama(running: BrokerProcess) -> None:
    run_pipeline(running, available(lambda: toolchains.go_program("sarama")), "sarama")
    assert running.wait.transaction_ended("sarama", timeout_s=WAIT_S) == "CompleteCommit"


def test_quix_streams(running: BrokerProcess, tmp_path: Path) -> None:
    run_pipeline(running, available(toolchains.quix_command), "quix", str(tmp_path))
    assert running.wait.transaction_ended("quix", timeout_s=WAIT_S) == "CompleteCommit"
    with running.admin() as admin:
        assert any(topic.startswith("changelog__quix--") for topic in admin.list_topics())


def test_kafkajs(running: BrokerProcess) -> None:
    run_pipeline(running, available(toolchains.node_program), "kafkajs")
    assert running.wait.transaction_ended("kafkajs", timeout_s=WAIT_S) == "CompleteCommit"


def test_kafka_streams_with_exactly_once_v2(running: BrokerProcess, tmp_path: Path) -> None:
    command = available(lambda: toolchains.java_command(str(HERE / "java" / "Pipeline.java")))
    run_pipeline(running, command, "streams", str(tmp_path))
    with running.admin() as admin:
        assert "streams-counts-changelog" in admin.list_topics()


def test_kcat(running: BrokerProcess) -> None:
    program, environment = available(toolchains.kcat)
    topic = running.create_topic("kcat")

    def run(*arguments: str, text: str = "") -> str:
        command = [program, "-b", running.bootstrap_servers, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = "".join(value + "\n" for value in VALUES)
    run("-P", "-t", topic, "-X", "transactional.id=kcat", text=lines)
    assert running.wait.transaction_ended("kcat", timeout_s=WAIT_S) == "CompleteCommit"
    assert run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-X", "isolation.level=read_committed") == lines
    assert f'topic "{topic}" with 1 partitions' in run("-L", "-t", topic)


def test_kafka_connect_with_exactly_once_source(running: BrokerProcess, tmp_path: Path) -> None:
    available(toolchains.java_class_path)
    target = running.create_topic("connect")
    source = tmp_path / "source.txt"
    source.write_text("".join(value + "\n" for value in VALUES))
    with connect_worker(running, tmp_path) as rest:
        connector = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(source),
            "topic": target,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        }
        create_connector(rest, {"name": "files", "config": connector})
        deadline_s = time.monotonic() + WAIT_S
        while committed_values(running, target) != VALUES:
            status = ask(f"{rest}/connectors/files/status")
            assert "FAILED" not in json.dumps(status), status
            assert time.monotonic() < deadline_s, status
            time.sleep(0.2)
    with running.admin() as admin:
        ids = [listing.transactional_id for listing in admin.list_transactions()]
    assert any(one.startswith("connect-cluster-files") for one in ids), ids


def create_connector(rest: str, wanted: object) -> None:
    """As soon as the worker is in its group: before that it says that it is about to be."""

    def is_made() -> bool:
        try:
            ask(f"{rest}/connectors", wanted)
        except urllib.error.HTTPError as error:
            if error.code != REBALANCING:
                raise
            return False
        return True

    wait_until(is_made, timeout_s=WAIT_S)


class connect_worker:  # noqa: N801  a context manager
    """A worker of Kafka Connect in distributed mode, which alone has exactly-once sources."""

    def __init__(self, running: BrokerProcess, folder: Path) -> None:
        self._log = folder / "connect.log"
        self._port = free_ports(1)[0]
        for name in ("offsets", "configs", "status"):
            with running.admin() as admin:
                from oncelog.client import NewTopic

                admin.create_topics([NewTopic(f"connect-{name}", 1, configs={"cleanup.policy": "compact"})])
        settings = {
            "bootstrap.servers": running.bootstrap_servers,
            "group.id": "connect-cluster",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.topic": "connect-offsets",
            "config.storage.topic": "connect-configs",
            "status.storage.topic": "connect-status",
            "offset.storage.replication.factor": "1",
            "config.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "only_scan",
        }
        self._file = folder / "connect.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def __enter__(self) -> str:
        command = toolchains.java_command("org.apache.kafka.connect.cli.ConnectDistributed", str(self._file))
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        rest = f"http://127.0.0.1:{self._port}"
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                ask(f"{rest}/connectors")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert self._process.poll() is None, self._log.read_text()[-4000:]
                assert time.monotonic() < deadline_s, self._log.read_text()[-4000:]
                time.sleep(0.2)
            else:
                return rest

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ask(address: str, body: object | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)
