"""How a task writes to many partitions: few requests, and record batches of more than a few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import ClientConfig, TransactionClient, batch_producer
from oncelog.client.connection import Connection
from oncelog.spark import write_task
from oncelog.spark.write_job import TaskOrders, WriteMode
from oncelog.spark.write_task import write_batches
from tests.spark.kafka import Kafka

PARTITIONS = 200


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch) -> list[Counter[int]]:
    """For each Produce request how many batches it has of which partition."""
    requests: list[Counter[int]] = []
    ask = Connection.ask

    def noting(self: Connection, request: Any, *rest: Any, **more: Any) -> Any:
        if type(request).__name__ == "ProduceRequest":
            requests.append(Counter(one.index for topic in request.topic_data for one in topic.partition_data))
        return ask(self, request, *rest, **more)

    monkeypatch.setattr(Connection, "ask", noting)
    return requests


@pytest.fixture
def orders(kafka: Kafka, name: Callable[[str], str], request: pytest.FixtureRequest) -> Iterator[TaskOrders]:
    """Of a transaction that is open until the test ends, and then committed."""
    topic = kafka.create(name("wide"), PARTITIONS)
    version = getattr(request, "param", 2)
    config = ClientConfig(bootstrap_servers=kafka.servers, transaction_version_max=version)
    with TransactionClient(config) as client:
        client.init(name("id"))
        yield TaskOrders(
            client=config,
            transaction=client.share([topic]),
            compression_type="none",
            max_request_size=1_048_576,
            topic=topic,
            dead_letter_topic=None,
            first_partition=0,
            mode=WriteMode.DRIVER,
        )
        client.end(commit=True)


def rows(first: int, count: int) -> pa.RecordBatch:
    keys = pa.array([b"%d" % number for number in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_arrays([keys, keys], names=["key", "value"])


@pytest.mark.parametrize("orders", [1, 2], indirect=True)
def test_rows_for_many_partitions_share_requests_and_batches(
    orders: TaskOrders, produced: list[Counter[int]], kafka: Kafka
) -> None:
    """Five small Arrow batches, each with rows for every partition: a thousand requests of a few rows each."""
    written = write_batches(orders, 0, iter([rows(number * 2000, 2000) for number in range(5)]))
    assert sum(written.column("records").to_pylist()) == 10_000
    assert len(produced) <= 3
    assert sum(produced, Counter()) == dict.fromkeys(range(PARTITIONS), 1)


def test_every_row_is_written_once_and_in_order_whatever_is_gathered(
    orders: TaskOrders, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(write_task, "GATHERED_BYTES_MAX", 10_000)
    monkeypatch.setattr(batch_producer, "SENT_TOGETHER_BYTES", 3000)
    monkeypatch.setattr(batch_producer, "IN_FLIGHT_BYTES_MAX", 20_000)
    write_batches(orders, 0, iter([rows(number * 500, 500) for number in range(10)]))
    seen = kafka.read(orders.topic or "", committed=False)
    values = [int(one.value or b"") for one in seen if one.value]
    assert sorted(values) == list(range(5000))
    for partition in range(PARTITIONS):
        own = [int(one.value or b"") for one in seen if one.partition == partition]
        assert own == sorted(own)
