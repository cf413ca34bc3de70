"""Folders that Oncelog itself has left, in order or by kill -9, are in order; and can be looked at while it runs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.client import Admin, ClientConfig, KafkaError, NewTopic, Producer, TopicPartition
from oncelog.inspection.layout import PartitionFolder
from oncelog.inspection.transactions import read_history
from oncelog.inspection.verification import Finding, Severity, verify_path
from oncelog.testing import BrokerProcess

SMALL = {"internal.segment.bytes": "3000", "index.interval.bytes": "300"}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 100,
}

IMPATIENT = {"default.api.timeout.ms": 5_000, "delivery.timeout.ms": 5_000, "request.timeout.ms": 4_000}


def damage_in(folder: Path) -> list[Finding]:
    return [finding for finding in verify_path(folder).findings if finding.severity is not Severity.NOTE]


def write(servers: str, chance: random.Random, steps: int) -> Producer:
    """Transactions and plain batches on all topics, in random order; one transaction is left open."""
    plain = Producer({"bootstrap.servers": servers, "linger.ms": 0, "compression.type": "zstd"})
    lasting = {"bootstrap.servers": servers, "linger.ms": 0, "transaction.timeout.ms": 600_000}
    writers = [Producer({**lasting, "transactional.id": f"t{i}"}) for i in range(2)]
    opened: set[Producer] = set()
    for producer in writers:
        producer.init_transactions()
    for step in range(steps):
        producer = chance.choice([plain, *writers])
        if producer is not plain and producer not in opened:
            producer.begin_transaction()
            opened.add(producer)
        topic = chance.choice(["log", "log", "compacted", "retained"])
        value = f"value {step} " * chance.randint(1, 20)
        producer.send(topic, value, key=f"key {chance.randrange(6)}", partition=0).result(60)
        if producer in opened and chance.random() < 0.5:
            producer.send_offsets_to_transaction({TopicPartition("log", 0): step}, "group")
            (producer.commit_transaction if chance.random() < 0.6 else producer.abort_transaction)()
            opened.discard(producer)
    if writers[0] not in opened:
        writers[0].begin_transaction()
    writers[0].send("log", b"left open", partition=0).result(60)
    plain.close()
    writers[1].close(1_000)
    return writers[0]


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", {**SETTINGS, "transaction.version": request.param})
    yield broker.start()
    broker.stop()


def test_what_a_broker_leaves_is_in_order(process: BrokerProcess) -> None:
    chance = random.Random(7)
    with Admin(ClientConfig(bootstrap_servers=process.bootstrap_servers)) as admin:
        admin.create_topics(
            [
                NewTopic("log", 1, 1, SMALL),
                NewTopic("compacted", 1, 1, COMPACTED),
                NewTopic("retained", 1, 1, {**SMALL, "retention.bytes": "6000"}),
            ]
        )
        open_one = write(process.bootstrap_servers, chance, 100)
        place = TopicPartition("log", 0)
        admin.delete_records({place: admin.list_offsets({place: -1})[place].offset // 3})
        assert damage_in(process.data_dir) == [], "while it runs"
        history = read_history(PartitionFolder(process.data_dir / "log-0"))
        (producer,) = [p for p in admin.describe_producers([place])[place] if p.transaction_start_offset >= 0]
        assert history.last_stable_offset == producer.transaction_start_offset
    process.stop()
    open_one.close(10)
    assert damage_in(process.data_dir) == [], "after a stop"
    process.start()
    open_one = write(process.bootstrap_servers, chance, 60)
    process.kill()
    open_one.close(10)
    assert damage_in(process.data_dir) == [], "after a kill"
    process.start()
    process.stop()
    assert damage_in(process.data_dir) == [], "after a recovery"


def abort(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t", **IMPATIENT})
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("log", b"aborted", partition=0).result(60)
        producer.abort_transaction()
    finally:
        producer.close(10)


def fill(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, **IMPATIENT})
    try:
        for _ in range(5):
            producer.send("log", bytes(1_000), partition=0).result(60)
    finally:
        producer.close(10)


def delete(servers: str) -> None:
    fill(servers)
    with Admin(ClientConfig(bootstrap_servers=servers, default_api_timeout_ms=5_000)) as admin:
        admin.delete_records({TopicPartition("log", 0): 4})


@pytest.mark.parametrize(
    ("failpoint", "work", "check"),
    [
        ("log.append.before_txn_index", abort, "txnindex.missing"),
        ("segment.create.after_log_file", fill, "index.missing"),
        ("segment.delete.before_rename@2", delete, "index.orphan"),
    ],
)
def test_what_a_kill_leaves_half_done_is_a_note_since_the_next_start_finishes_it(
    failpoint: str, work: Callable[[str], None], check: str, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", SETTINGS)
    broker.start()
    with Admin(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic("log", 1, 1, SMALL)])
    broker.stop()
    broker.start(extra_arguments=["--failpoint", failpoint])
    try:
        with contextlib.suppress(KafkaError, TimeoutError):
            work(broker.bootstrap_servers)
        broker.wait_for_exit(60)
        found = verify_path(broker.data_dir).findings
        assert check in {finding.check for finding in found}
        assert {finding.severity for finding in found} == {Severity.NOTE}
        broker.start()
    finally:
        broker.stop()
    assert check not in {finding.check for finding in verify_path(broker.data_dir).findings}
