"""One transaction over many processes: what is new in a topic is copied, by worker processes and exactly once.

    python -m examples.client.shared_transaction 127.0.0.1:9092 orders orders-copy

The driver decides which offsets are copied, shares its transaction with the workers, and commits what they wrote
together with those offsets, as those of the group `example-copy`. Whatever dies before that leaves nothing: the next
run aborts the transaction and copies the same offsets again. Each partition is written by one worker alone.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from oncelog.client import (
    BatchProducer,
    ClientConfig,
    FatalError,
    IsolationLevel,
    NewTopic,
    OffsetSpec,
    RangeReader,
    SharedTransaction,
    TopicPartition,
    TransactionClient,
    worker_client,
)
from oncelog.client.columns import encode_columns, to_arrow


class Range(NamedTuple):
    partition: TopicPartition
    start: int
    end: int


def run(servers: str, source: str, target: str, *, workers: int = 2, name: str = "example-copy") -> int:
    """Copy what is new. Returns the number of records."""
    config = ClientConfig(bootstrap_servers=servers)
    with TransactionClient(config) as driver:
        driver.init(name)  # fences an older driver, and aborts what it left open
        ranges = new_ranges(config, driver, source, target, name)
        copying = partial(copy, config, driver.share([target]), target)
        try:
            with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
                records = sum(pool.map(copying, ranges))
        except BaseException:
            with contextlib.suppress(FatalError):  # if no worker had written anything yet
                driver.end(commit=False)
            raise
        if ranges:
            driver.commit_offsets(name, {one.partition: one.end for one in ranges})
            driver.end(commit=True)
    return records


def new_ranges(config: ClientConfig, driver: TransactionClient, source: str, target: str, name: str) -> list[Range]:
    """What was committed to the source since the last run."""
    client = worker_client(config)
    partitions = client.partitions_of([source])[source]
    client.create_topics([NewTopic(target, len(partitions))], if_not_exists=True)
    first = client.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    last = client.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), isolation=IsolationLevel.READ_COMMITTED)
    done = driver.fetch_offsets(name)
    ranges = [Range(one, (done.get(one) or first[one]).offset, last[one].offset) for one in partitions]
    return [one for one in ranges if one.start < one.end]


def copy(config: ClientConfig, transaction: SharedTransaction, target: str, wanted: Range) -> int:
    """What a worker does: connections stay open for the next range that it is given."""
    client = worker_client(config)
    place = TopicPartition(target, wanted.partition.partition)
    with BatchProducer(client, transaction) as producer:
        for chunk in RangeReader(client).read(*wanted.partition, wanted.start, wanted.end):
            rows = to_arrow([chunk])
            columns = {name: rows.column(name) for name in ("key", "headers")}
            for batch in encode_columns(rows.column("value"), **columns, timestamp_ms=time.time_ns() // 1_000_000):
                producer.write(place, batch)
        return sum(written.records for written in producer.flush())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    parser.add_argument("source", metavar="INPUT")
    parser.add_argument("target", metavar="OUTPUT")
    options = parser.parse_args()
    print("records copied:", run(options.servers, options.source, options.target))  # noqa: T201  # for people
