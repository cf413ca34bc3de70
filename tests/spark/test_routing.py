"""Where rows go, and which of them no topic can take."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import ClientConfig, SharedTransaction, TopicFacts
from oncelog.client.columns import encode_columns
from oncelog.core.hashing import partition_for_key
from oncelog.spark import routing
from oncelog.spark.dead_letters import dead_letters
from oncelog.spark.record_size import record_sizes
from oncelog.spark.routing import RowError, RowProblem, partition_numbers
from oncelog.spark.write_job import TaskOrders, WriteMode
from oncelog.spark.write_task import _encode, by_target

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
LIMIT = 2000


TOPICS = {
    "plain": TopicFacts(2, message_bytes_max=1_048_588),
    "compacted": TopicFacts(2, is_compacted=True),
    "narrow": TopicFacts(2, message_bytes_max=1000),
    "__consumer_offsets": TopicFacts(50, is_internal=True),
    "dead": TopicFacts(3),
}


class Topics:
    """Stands for the cluster."""

    def topic_facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        return {name: TOPICS[name] for name in topics if name in TOPICS}


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "worker_client", lambda _: Topics())


def make_orders(
    dead_letter_topic: str | None = "dead", *, known: dict[str, TopicFacts] | None = None, **more: Any
) -> TaskOrders:
    settings: dict[str, Any] = {
        "client": ClientConfig(bootstrap_servers="nowhere:1"),
        "transaction": SharedTransaction(topics=known or {}),
        "compression_type": "none",
        "max_request_size": LIMIT,
        "topic": None,
        "dead_letter_topic": dead_letter_topic,
        "first_partition": 0,
    }
    return TaskOrders(**{**settings, **more})


def make_rows(*rows: dict[str, Any]) -> pa.RecordBatch:
    complete = [{"key": b"k", "value": b"v", "topic": "plain", "headers": None, **row} for row in rows]
    return pa.RecordBatch.from_pylist(complete, schema=SCHEMA)


def header(key: str | None, value: bytes | None = b"x") -> dict[str, Any]:
    return {"key": key, "value": value}


BAD_ROWS: list[tuple[dict[str, Any], RowProblem]] = [
    ({"topic": None}, RowProblem.NO_TOPIC),
    ({"topic": "nowhere"}, RowProblem.UNKNOWN_TOPIC),
    ({"topic": "__consumer_offsets"}, RowProblem.INTERNAL_TOPIC),
    ({"topic": "compacted", "key": None}, RowProblem.NO_KEY),
    ({"headers": [None]}, RowProblem.NAMELESS_HEADER),
    ({"headers": [header("a"), header(None)]}, RowProblem.NAMELESS_HEADER),
    ({"value": bytes(LIMIT)}, RowProblem.TOO_LARGE),
    ({"value": bytes(LIMIT - 60)}, RowProblem.TOO_LARGE),
    ({"headers": [header("a", bytes(LIMIT))]}, RowProblem.TOO_LARGE),
    ({"headers": [header("a", b"")] * (LIMIT // 10)}, RowProblem.TOO_LARGE),
    ({"topic": "narrow", "value": bytes(1000)}, RowProblem.TOO_LARGE_FOR_TOPIC),
]


@pytest.mark.parametrize(
    ("row", "kind"), BAD_ROWS, ids=lambda value: value.name if isinstance(value, RowProblem) else ""
)
def test_a_row_that_the_broker_would_refuse_has_its_problem_named(row: dict[str, Any], kind: RowProblem) -> None:
    good = {"headers": [header("a", None), header("b")]}
    assert list(partition_numbers(make_orders(), make_rows(good, row, good)) < 0) == [False, True, False]
    assert partition_numbers(make_orders(), make_rows(row))[0] == kind
    with pytest.raises(RowError, match=f"a row cannot be written: {routing.REASONS[kind]}"):
        partition_numbers(make_orders(dead_letter_topic=None), make_rows(good, row))


def test_rows_at_home_in_a_compacted_topic_have_keys() -> None:
    assert (partition_numbers(make_orders(), make_rows({"topic": "compacted"})) >= 0).all()


@pytest.mark.parametrize("row", [{"value": bytes(LIMIT)}, {"headers": [header(None)]}])
def test_a_task_with_a_partition_of_its_own_refuses_bad_rows_too(row: dict[str, Any]) -> None:
    orders = make_orders(dead_letter_topic=None, topic="plain", known={"plain": TOPICS["plain"]}, mode=WriteMode.DIRECT)
    rows = make_rows({}, row).select(["value", "headers"])
    with pytest.raises(RowError):
        list(by_target(orders, 0, rows))


def test_no_record_is_larger_than_the_size_it_is_judged_by() -> None:
    rows = make_rows(
        {},
        {"value": None, "key": None},
        {"value": bytes(100_000), "key": bytes(300)},
        {"headers": [header("name" * 50, bytes(200))] * 3},
        {"headers": []},
        {"headers": [header("n", None)]},
    )
    for i, judged in enumerate(record_sizes(rows)):
        row = rows.slice(i, 1)
        (real,) = encode_columns(
            row.column("value"), key=row.column("key"), headers=row.column("headers"), timestamp_ms=1
        )
        assert real.size_bytes <= judged <= real.size_bytes + 97


@pytest.mark.parametrize(
    ("row", "left_out"),
    [
        ({"headers": [header("a", bytes(LIMIT))]}, b"headers"),
        ({"value": bytes(LIMIT), "headers": [header("a")]}, b"value"),
        ({"value": bytes(LIMIT), "headers": [header("a", bytes(LIMIT))]}, b"value headers"),
        ({"key": bytes(LIMIT)}, b"key headers"),
        ({"key": bytes(LIMIT), "value": bytes(LIMIT)}, b"key value headers"),
        ({"topic": "nowhere", "value": bytes(LIMIT - 150)}, b"value"),
        ({"topic": "x" * LIMIT}, None),
        ({"headers": [None, header(None), header("a")]}, None),
    ],
)
def test_a_dead_letter_fits_and_says_what_it_left_out(row: dict[str, Any], left_out: bytes | None) -> None:
    ((target, letters),) = by_target(make_orders(), 0, make_rows(row))
    assert target.topic == "dead"
    assert record_sizes(letters)[0] <= LIMIT
    letter = letters.to_pylist()[0]
    told = {one["key"]: one["value"] for one in letter["headers"]}
    assert told.get("oncelog.left_out") == left_out
    assert told["oncelog.error"]
    for name in ("key", "value"):
        assert (letter[name] is None) == (name in (left_out or b"").decode().split())
    if left_out in (None, b"value") and "headers" in row:
        assert told["a"] == b"x"


def test_a_dead_letter_is_the_row_as_it_was() -> None:
    row = {"topic": "nowhere", "key": b"k", "value": None, "headers": [header("a", None)]}
    letter = dead_letters(make_rows(row), [RowProblem.UNKNOWN_TOPIC], make_orders()).to_pylist()[0]
    assert (letter["key"], letter["value"], letter["headers"][0]) == (b"k", None, header("a", None))
    assert letter["headers"][1:3] == [
        header("oncelog.error", b"its topic does not exist"),
        header("oncelog.topic", b"nowhere"),
    ]


def test_a_row_that_its_topic_just_takes_is_good() -> None:
    """Judged by what is sent: a rough sum of its parts would be above the limit."""
    (frame,) = encode_columns(pa.array([b""]), key=pa.array([b"k"]), timestamp_ms=1)
    room = 1000 - frame.size_bytes
    longest = max(
        n
        for n in range(room)
        if partition_numbers(make_orders(), make_rows({"topic": "narrow", "value": bytes(n)}))[0] >= 0
    )
    (sent,) = encode_columns(pa.array([bytes(longest)]), key=pa.array([b"k"]), timestamp_ms=1)
    assert sent.size_bytes == 1000


def test_what_is_sent_compressed_is_judged_compressed() -> None:
    squeezed = make_orders(compression_type="gzip")
    assert partition_numbers(squeezed, make_rows({"topic": "narrow", "value": bytes(1500)}))[0] >= 0
    noise = random.Random(7).randbytes(1500)
    assert (
        partition_numbers(squeezed, make_rows({"topic": "narrow", "value": noise}))[0] == RowProblem.TOO_LARGE_FOR_TOPIC
    )


def test_no_batch_is_larger_than_its_topic_takes() -> None:
    rows = make_rows(*({"topic": "narrow", "value": bytes(300)} for _ in range(20)))
    sent = list(_encode(make_orders(), 0, iter([rows])))
    assert sum(encoded.records_count for _, encoded in sent) == 20
    assert max(encoded.size_bytes for _, encoded in sent) <= 1000


def test_dead_letters_go_where_their_keys_belong() -> None:
    """To one partition they would be written by one task, and read by one consumer."""
    rows = make_rows(*({"topic": "nowhere", "key": b"k%d" % (i % 50)} for i in range(100)))
    found = {target: letters.column("key").to_pylist() for target, letters in by_target(make_orders(), 0, rows)}
    assert {target.partition for target in found} == {0, 1, 2}
    for target, keys in found.items():
        assert all(partition_for_key(key, 3) == target.partition for key in keys)
    assert sum(map(len, found.values())) == 100


def test_dead_letters_without_keys_go_round() -> None:
    rows = make_rows({"topic": "nowhere", "key": None})
    assert [next(by_target(make_orders(), task, rows))[0].partition for task in range(4)] == [0, 1, 2, 0]
