"""Writing the input of the demo and reading its topics back, with the client alone: no Spark involved."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from oncelog.client.columns import encode_columns, partition_column, to_arrow
from oncelog.client.config import ClientConfig
from oncelog.client.fetch import FetchSettings
from oncelog.client.transaction import TransactionClient
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.spark.demo.orders import customer_columns, order_columns
from oncelog.spark.offsets import EARLIEST, LATEST
from oncelog.spark.planning import OffsetRange
from oncelog.spark.task_writer import TaskWriter
from oncelog.spark.worker_client import worker_client

GENERATOR_ID = "oncelog-demo-generator"


def write_orders(config: ClientConfig, topic: str, count: int) -> Iterator[int]:
    """Write all orders, a transaction per chunk; yields how many are written."""
    written = 0
    with TransactionClient(config) as transactions:
        transactions.init(GENERATOR_ID)
        for keys, values in order_columns(count):
            _write(config, transactions, topic, keys, values)
            written += len(values)
            yield written


def write_customers(config: ClientConfig, topic: str) -> None:
    with TransactionClient(config) as transactions:
        transactions.init(GENERATOR_ID)
        _write(config, transactions, topic, *customer_columns())


def _write(config: ClientConfig, transactions: TransactionClient, topic: str, keys: pa.Array, values: pa.Array) -> None:
    client = worker_client(config)
    numbers = partition_column(keys, client.partition_count(topic))
    with TaskWriter(
        client,
        identity=transactions.identity if transactions.uses_tv2 else transactions.fresh_epoch(),
        transactional_id=GENERATOR_ID,
        transaction_version=transactions.transaction_version,
    ) as writer:
        for number in np.unique(numbers):
            rows = pa.array(np.flatnonzero(numbers == number))
            now_ms = time.time_ns() // 1_000_000
            for batch in encode_columns(values.take(rows), key=keys.take(rows), timestamp_ms=now_ms):
                writer.write(TopicPartition(topic, int(number)), batch)
        writer.finish()
    transactions.end(commit=True)


def read_topic(
    config: ClientConfig, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> Iterator[pa.RecordBatch]:
    """Everything visible in a topic now, partition by partition."""
    client = worker_client(config)
    partitions = client.partitions_of([topic]).get(topic, [])
    first = client.list_offsets(dict.fromkeys(partitions, EARLIEST), isolation)
    last = client.list_offsets(dict.fromkeys(partitions, LATEST), isolation)
    for partition in partitions:
        wanted = OffsetRange(partition, first[partition], last[partition])
        for chunk in client.read(wanted, FetchSettings(isolation)):
            yield to_arrow([chunk], headers=False)
