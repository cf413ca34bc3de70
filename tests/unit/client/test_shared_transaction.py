"""One transaction over many processes: what is handed over, what workers may do with it, and what they leave open."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import (
    AbortableError,
    Admin,
    BatchProducer,
    ClientConfig,
    IsolationLevel,
    KafkaError,
    RangeReader,
    SharedTransaction,
    TopicPartition,
    TransactionClient,
    TransactionError,
    batch_producer,
    worker_client,
)
from oncelog.client.columns import encode_columns, to_arrow
from oncelog.client.connection import Connection
from tests.unit.client.reading import Reading

WORKER = """
import pickle, sys
import pyarrow as pa
from oncelog.client import BatchProducer, worker_client
from oncelog.client.columns import encode_columns

config, transaction, topic, partition = pickle.load(sys.stdin.buffer)
batches = encode_columns(pa.array([f"{partition}-{n}" for n in range(50)]), timestamp_ms=0)
with BatchProducer(worker_client(config), transaction) as producer:
    sys.stdout.buffer.write(pickle.dumps(producer.produce(topic, partition, batches)))
"""


def batches(*values: str, batch_bytes: int = 100_000) -> Any:
    return encode_columns(pa.array(values), timestamp_ms=0, batch_bytes=batch_bytes)


@pytest.fixture
def driver(config: ClientConfig, unique: Callable[[str], str]) -> Iterator[TransactionClient]:
    with TransactionClient(config) as client:
        client.init(unique("shared"))
        yield client


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connections that are made from now on."""
    made: list[str] = []
    honest = Connection.open.__func__  # type: ignore[attr-defined]

    async def noting(cls: type[Connection], config: ClientConfig, *rest: object) -> Connection:
        made.append(config.client_id)
        connection: Connection = await honest(cls, config, *rest)
        return connection

    monkeypatch.setattr(Connection, "open", classmethod(noting))
    return made


def test_other_processes_write_and_the_driver_commits_it_with_its_input(
    config: ClientConfig, driver: TransactionClient, topic: str, reading: Reading, unique: Callable[[str], str]
) -> None:
    transaction = driver.share([topic, "no-such-topic"])
    assert {name: facts.partitions for name, facts in transaction.topics.items()} == {topic: 2}
    for partition in range(2):
        handed = pickle.dumps((config, transaction, topic, partition))
        done = subprocess.run([sys.executable, "-c", WORKER], input=handed, capture_output=True, check=True, timeout=60)
        summary = pickle.loads(done.stdout)
        assert (summary.partition, summary.records, summary.next_sequence) == (TopicPartition(topic, partition), 50, 50)
        assert summary.first_offset == 0
        assert summary.size_bytes > 50
    assert reading.values(topic) == []
    group, place = unique("group"), TopicPartition(topic, 0)
    driver.commit_offsets(group, {place: 7})
    driver.end(commit=True)
    assert len(reading.values(topic)) == 100
    assert driver.fetch_offsets(group)[place].offset == 7


def test_a_handle_is_good_for_one_transaction(config: ClientConfig, driver: TransactionClient, topic: str) -> None:
    transaction = driver.share()
    with BatchProducer(config, transaction) as producer:
        producer.produce(topic, 0, batches("a"))
    driver.end(commit=True)
    with BatchProducer(config, transaction) as producer, pytest.raises(TransactionError):
        producer.produce(topic, 1, batches("late"))


def test_calls_of_one_producer_go_on_where_the_last_ended(
    config: ClientConfig, driver: TransactionClient, topic: str, reading: Reading
) -> None:
    with BatchProducer(config, driver.share()) as producer:
        producer.write(TopicPartition(topic, 1), batches("w")[0])
        assert producer.produce(topic, 0, batches("a", "b")).next_sequence == 2
        summary = producer.produce(topic, 0, batches("c"))
        assert (summary.batches, summary.records, summary.first_offset, summary.next_sequence) == (2, 3, 0, 3)
        assert [one.records for one in producer.flush()] == [3, 1]
        assert producer.produce("nowhere", 0, []).first_offset == -1
    driver.end(commit=True)
    assert reading.values(topic) == [b"a", b"b", b"c", b"w"]


def test_more_than_may_be_on_its_way_waits_and_arrives_in_order(
    config: ClientConfig, driver: TransactionClient, topic: str, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_producer, "IN_FLIGHT_BYTES_MAX", 500)
    monkeypatch.setattr(batch_producer, "SENT_TOGETHER_BYTES", 200)
    values = [f"{number:04}" for number in range(200)]
    with BatchProducer(config, driver.share()) as producer:
        for number, batch in enumerate(batches(*values, batch_bytes=1)):
            producer.write(TopicPartition(topic, number % 2), batch)
            assert producer._in_flight_bytes <= 500 + batch.size_bytes
        assert [one.records for one in producer.flush()] == [100, 100]
        assert not producer._oldest
    driver.end(commit=True)
    assert reading.values(topic) == [value.encode() for value in values[0::2] + values[1::2]]


def test_threads_may_share_a_producer(
    config: ClientConfig, driver: TransactionClient, topic: str, reading: Reading
) -> None:
    with BatchProducer(config, driver.share()) as producer:

        def write(partition: int) -> None:
            for number in range(30):
                producer.produce(topic, partition, batches(f"{partition}-{number:02}"))

        threads = [threading.Thread(target=write, args=(partition,)) for partition in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [one.records for one in producer.flush()] == [30, 30]
    driver.end(commit=True)
    assert reading.values(topic) == [f"{p}-{n:02}".encode() for p in range(2) for n in range(30)]


def test_what_could_not_be_sent_is_not_waited_for(
    config: ClientConfig, unique: Callable[[str], str], topic: str
) -> None:
    """Over the older protocol a worker adds its partitions first: when that is refused, nothing is sent at all."""
    older = ClientConfig(bootstrap_servers=config.bootstrap_servers, transaction_version_max=1)
    with TransactionClient(older) as driver:
        driver.init(unique("shared"))
        transaction = driver.share()
        driver.fresh_epoch()
        with BatchProducer(older, transaction) as producer:
            producer.write(TopicPartition(topic, 0), batches("a")[0])
            for _ in range(2):
                with pytest.raises(TransactionError, match="AddPartitionsToTxn"):
                    producer.flush()
                producer.write(TopicPartition(topic, 0), batches("a")[0])


def test_a_batch_that_a_topic_refuses_is_an_error_of_the_transaction(
    config: ClientConfig, driver: TransactionClient, topic: str
) -> None:
    with BatchProducer(config, driver.share()) as producer, pytest.raises(AbortableError, match=f"{topic}-0.*abort"):
        producer.produce(topic, 0, batches("x" * 2_000_000, batch_bytes=1))
    driver.end(commit=False)
    with BatchProducer(config, SharedTransaction()) as plain, pytest.raises(KafkaError) as caught:
        plain.produce(topic, 0, batches("x" * 2_000_000, batch_bytes=1))
    assert not isinstance(caught.value, TransactionError)


def test_tasks_of_a_process_use_the_same_connections(
    servers: str, driver: TransactionClient, topic: str, opened: list[str]
) -> None:
    config = ClientConfig(bootstrap_servers=servers, client_id="kept")
    for number in range(3):
        with BatchProducer(worker_client(config), driver.share()) as producer:
            producer.produce(topic, 0, batches(str(number)), base_sequence=number)
        level = IsolationLevel.READ_UNCOMMITTED
        with RangeReader(worker_client(config), isolation=level) as reader:
            assert sum(to_arrow([chunk]).num_rows for chunk in reader.read(topic, 0, 0, number + 1)) == number + 1
        if number == 0:
            at_first = list(opened)
    assert opened == at_first
    assert at_first.count("kept") >= 1
    driver.end(commit=False)
    assert worker_client(config).describe_topics([topic])


def test_a_client_of_its_own_leaves_no_connections(servers: str, topic: str, opened: list[str]) -> None:
    for _ in range(2):
        with Admin(ClientConfig(bootstrap_servers=servers, client_id="own")) as admin:
            assert Admin(admin).describe_topics([topic])
    assert opened.count("own") == 2


def test_a_reader_tells_its_position_over_what_cannot_be_seen(
    config: ClientConfig, driver: TransactionClient, topic: str
) -> None:
    """A range may hold aborted records and markers alone."""
    with BatchProducer(config, driver.share()) as producer:
        producer.produce(topic, 0, batches("lost", "too"))
    driver.end(commit=False)
    with RangeReader(config) as reader:
        chunks = list(reader.read(topic, 0, 0, 3))
    assert [chunk.batches for chunk in chunks] == [[]] * len(chunks)
    assert chunks[-1].next_offset == 3
    assert to_arrow(chunks).num_rows == 0
    seen = [(header.base_offset, marker) for chunk in chunks for header, marker in chunk.batches_and_markers()]
    assert [(offset, marker is not None and marker.is_abort) for offset, marker in seen] == [(0, False), (2, True)]


def test_spark_uses_only_what_is_public() -> None:
    """A connector can do all that the Spark sink does: what it takes is exported, and documented."""
    import ast

    import oncelog.client
    from oncelog.client import columns, settings

    public = {module.__name__: set(module.__all__) for module in (oncelog.client, columns, settings)}
    taken = []
    for path in sorted((Path(oncelog.client.__file__).parents[1] / "spark").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("oncelog.client"):
                names = public.get(node.module or "", set())
                taken += [f"{path.name}: {node.module}.{one.name}" for one in node.names if one.name not in names]
            elif isinstance(node, ast.Import):
                taken += [f"{path.name}: {one.name}" for one in node.names if one.name.startswith("oncelog.client")]
    assert taken == []
