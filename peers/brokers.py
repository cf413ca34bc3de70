"""`python -m peers.brokers`: what several brokers of Oncelog on one machine give to clients together.

    python -m peers.brokers                        clusters of 1, 2 and 4 brokers, a few minutes
    python -m peers.brokers --brokers 1,8 --clients 16 --rounds 9

The clusters run side by side and are measured in turn, so that whatever else the machine does meets all of them: the
figures to look at are the medians of what each gives compared with the first, round by round. Topics have one replica.
Clients are processes with librdkafka, which need cores too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

import oncelog.testing
from oncelog.testing import Cluster

PARTITIONS: Final = 24
SIZE_BYTES: Final = 200
DEADLINE_S: Final = 300.0
# A machine that is busy with the measurement itself must not be taken for one that has lost brokers.
SETTINGS: Final = {"broker.session.timeout.ms": 30_000, "log.segment.delete.delay.ms": 0}

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Share:
    """What one client does."""

    servers: str
    topic: str
    partitions: tuple[int, ...]
    records: int


@dataclass(frozen=True, slots=True)
class Round:
    written_per_s: float
    read_per_s: float
    cpu_s_per_million: float
    """Of all brokers, for writing and reading."""


def write(share: Share) -> Span:
    producer = Producer({"bootstrap.servers": share.servers, "acks": "all", "linger.ms": 5, "batch.size": 262_144})
    value = os.urandom(SIZE_BYTES)
    producer.list_topics(share.topic, timeout=DEADLINE_S)
    started_s = time.monotonic()
    for number in range(share.records):
        partition = share.partitions[number % len(share.partitions)]
        while True:
            try:
                producer.produce(share.topic, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(DEADLINE_S):
        raise RuntimeError("records were not acknowledged in time")
    return started_s, time.monotonic()


def read(share: Share) -> Span:
    consumer = Consumer({"bootstrap.servers": share.servers, "group.id": "none", "enable.auto.commit": False})
    consumer.list_topics(share.topic, timeout=DEADLINE_S)
    started_s = time.monotonic()
    consumer.assign([TopicPartition(share.topic, partition, 0) for partition in share.partitions])
    missing = share.records
    while missing:
        found = consumer.consume(min(missing, 10_000), timeout=10)
        missing -= sum(message.error() is None for message in found)
        if time.monotonic() > started_s + DEADLINE_S:
            raise RuntimeError(f"{missing} records did not arrive in time")
    ended_s = time.monotonic()
    consumer.close()
    return started_s, ended_s


def measure(cluster: Cluster, clients: int, records: int, pool: ProcessPoolExecutor) -> Round:
    topic = cluster.create_topic(partitions=PARTITIONS, replicas=1)
    shares = [
        Share(cluster.bootstrap_servers, topic, tuple(range(client, PARTITIONS, clients)), records // clients)
        for client in range(clients)
    ]
    cpu_s = _cpu_s(cluster)
    written_s, read_s = (_seconds(list(pool.map(do, shares))) for do in (write, read))
    cpu_s = _cpu_s(cluster) - cpu_s
    with cluster.admin() as admin:
        admin.delete_topics([topic])
    total = records // clients * clients
    return Round(total / written_s, total / read_s, cpu_s / total * 1e6)


def _seconds(spans: Sequence[Span]) -> float:
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _cpu_s(cluster: Cluster) -> float:
    ticks = 0
    for broker in cluster.brokers.values():
        fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def report(found: dict[int, list[Round]]) -> str:
    first = next(iter(found.values()))
    lines = ["brokers   written/s          read/s             CPU s of brokers per million records"]
    for brokers, rounds in found.items():
        written = _beside([one.written_per_s for one in rounds], [one.written_per_s for one in first])
        was_read = _beside([one.read_per_s for one in rounds], [one.read_per_s for one in first])
        cpu = statistics.median(one.cpu_s_per_million for one in rounds)
        lines.append(f"{brokers:>7}   {written:<16}   {was_read:<16}   {cpu:.2f}")
    return "\n".join(lines)


def _beside(rates: list[float], first: list[float]) -> str:
    ratio = statistics.median(rate / base for rate, base in zip(rates, first, strict=True))
    return f"{statistics.median(rates):>9,.0f}  {ratio:.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(prog="peers.brokers", description="what several brokers on one machine give")
    parser.add_argument("--brokers", default="1,2,4", help="sizes of clusters; the first is compared with")
    parser.add_argument("--clients", type=int, default=4, help="processes that write, then read")
    parser.add_argument("--records", type=int, default=400_000, help=f"of {SIZE_BYTES} B, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sizes = [int(size) for size in options.brokers.split(",")]
    print(f"{os.cpu_count()} cores, {options.clients} clients, {PARTITIONS} partitions, {options.rounds} rounds")
    found: dict[int, list[Round]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        spawning = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(options.clients, mp_context=spawning))
        clusters = {size: stack.enter_context(oncelog.testing.cluster(size, settings=SETTINGS)) for size in sizes}
        for number in range(options.rounds + 1):
            for size, cluster in clusters.items():
                one = measure(cluster, options.clients, options.records, pool)
                if number:  # the first is for warming up
                    found[size].append(one)
    print(report(found))


if __name__ == "__main__":
    main()
