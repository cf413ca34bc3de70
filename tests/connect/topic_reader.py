"""Reads topics as any read_committed client does, and checks what a source wrote, without the connector's code."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any, NamedTuple

from oncelog.client import Admin, Consumer, ConsumerRecord, TopicPartition


class Read(NamedTuple):
    topic: str
    partition: int
    key: Any
    value: Any
    op: str
    txid: str
    lsn: int
    index: int
    snapshot: int


def partitions_of(servers: str, *topics: str) -> list[TopicPartition]:
    """None of a topic that nothing was written to, which is not there."""
    with Admin({"bootstrap.servers": servers}) as admin:
        known = admin.list_topics()
    counts = {topic: len(known[topic].partitions) for topic in topics if topic in known}
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


def read_all(servers: str, *topics: str) -> list[Read]:
    """In the order of each partition."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = partitions_of(servers, *topics)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found: list[Read] = []
        deadline_s = time.monotonic() + 300
        while any(consumer.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < deadline_s
            found += [decoded(record) for record in consumer.poll(timeout_ms=500, max_records=10_000)]
    return found


def decoded(record: ConsumerRecord) -> Read:
    headers = {name: (value or b"").decode() for name, value in record.headers}
    high, low = headers["lsn"].split("/")
    return Read(
        record.topic,
        record.partition,
        None if record.key is None else json.loads(record.key),
        None if record.value is None else json.loads(record.value),
        headers["op"],
        headers["txid"],
        int(high, 16) << 32 | int(low, 16),
        int(headers["index"]),
        int(headers.get("snapshot", 0)),
    )


def check_stream(records: list[Read]) -> None:
    """Nothing twice, nothing missing inside of a transaction, transactions in the order of their commits."""
    by_transaction: dict[tuple[int, str], list[int]] = defaultdict(list)
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for record in records:
        by_transaction[record.lsn, record.txid].append(record.index)
        place, at = (record.topic, record.partition), (record.lsn, record.index)
        assert last.get(place, (-1, -1)) < at, f"{record} comes after {last[place]}"
        last[place] = at
    for transaction, indexes in by_transaction.items():
        assert sorted(indexes) == list(range(len(indexes))), f"{transaction} has records {sorted(indexes)}"


def table_of(records: list[Read], topic: str) -> list[dict[str, Any]]:
    """The table that a reader of the topic makes of it, partition by partition."""
    partitions: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in records:
        if record.topic != topic:
            continue
        key, rows = json.dumps(record.key), partitions[record.partition]
        if record.op == "t":
            rows.clear()
        elif record.value is None:
            rows.pop(key, None)
        else:
            rows[key] = {**rows.get(key, {}), **record.value}
    found = [row for rows in partitions.values() for row in rows.values()]
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))
