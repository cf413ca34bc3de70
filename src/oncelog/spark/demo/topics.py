"""Writing the input of the demo and reading its topics back, with the client alone: no Spark involved."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from oncelog.client import (
    BatchProducer,
    ClientConfig,
    IsolationLevel,
    RangeReader,
    TopicPartition,
    TransactionClient,
    WorkerClient,
    worker_client,
)
from oncelog.client.columns import arrow_batches, encode_by_partition
from oncelog.spark.demo.orders import customer_columns, order_columns
from oncelog.spark.offsets import EARLIEST, LATEST, Offsets, list_offsets

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
    if not transactions.uses_tv2:
        transactions.fresh_epoch()
    transaction = transactions.share([topic])
    count, now_ms = transaction.topics[topic].partitions, time.time_ns() // 1_000_000
    encoded = encode_by_partition(values, count, partition=None, sticky=lambda: 0, timestamp_ms=now_ms, key=keys)
    with BatchProducer(worker_client(config), transaction) as producer:
        for number, batches in encoded:
            for batch in batches:
                producer.write(TopicPartition(topic, number), batch)
        producer.flush()
    transactions.end(commit=True)


def read_topic(config: ClientConfig, topic: str) -> Iterator[pa.RecordBatch]:
    """Everything visible in a topic now, partition by partition."""
    client, isolation = worker_client(config), IsolationLevel.READ_COMMITTED
    reader = RangeReader(client, isolation=isolation)
    last = topic_offsets(client, topic, LATEST, isolation)
    for partition, first in topic_offsets(client, topic, EARLIEST, isolation).items():
        for chunk in reader.read(*partition, first, last[partition]):
            yield from arrow_batches(chunk, headers=False)


def topic_offsets(client: WorkerClient, topic: str, which: int, isolation: IsolationLevel) -> Offsets:
    """The offsets of all partitions of a topic."""
    partitions = client.partitions_of([topic]).get(topic, [])
    return list_offsets(client, dict.fromkeys(partitions, which), isolation)
