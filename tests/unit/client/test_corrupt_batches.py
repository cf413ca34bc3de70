"""Whatever is in a log: what can be read is delivered, what cannot is named, and who wants to goes on behind it."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client import ClientConfig, Consumer, CorruptBatch, RangeReader
from oncelog.client.columns import to_arrow
from oncelog.client.consumer_records import iter_records
from oncelog.core.ids import TopicPartition
from oncelog.testing import BrokerProcess
from tests.unit.client.poison import PROBLEMS, READABLE, make_poisoned_topic
from tests.waiting import wait_until

END = 9


@pytest.fixture(scope="module")
def poisoned(oncelog_broker: BrokerProcess) -> TopicPartition:
    return make_poisoned_topic(oncelog_broker, "poisoned")


def reader_of(servers: str, poisoned: TopicPartition, **settings: Any) -> Consumer:
    consumer = Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", **settings})
    consumer.assign([poisoned])
    return consumer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]


def values_and_problems(read: Any, seek: Any) -> tuple[list[bytes], list[tuple[int, int]]]:
    """All that `read` gives, going on behind each problem."""
    values: list[bytes] = []
    problems: list[tuple[int, int]] = []

    def is_done() -> bool:
        try:
            values.extend(read())
        except CorruptBatch as error:
            assert error.partition == TopicPartition("poisoned", 0)
            assert f"topic poisoned, partition 0: offsets {error.offset} to {error.next_offset - 1}" in str(error)
            with pytest.raises(CorruptBatch):
                read()
            problems.append((error.offset, error.next_offset))
            seek(error.next_offset)
        return values[-1:] == [b"f"]

    wait_until(is_done)
    return values, problems


def test_a_consumer_delivers_what_is_good_and_names_what_is_not(servers: str, poisoned: TopicPartition) -> None:
    with reader_of(servers, poisoned) as consumer:
        found = values_and_problems(
            lambda: [record.value for record in consumer.poll(500)], lambda offset: consumer.seek(poisoned, offset)
        )
        assert found == (READABLE, PROBLEMS)


def test_columns_deliver_what_is_good_and_name_what_is_not(servers: str, poisoned: TopicPartition) -> None:
    with reader_of(servers, poisoned) as consumer:
        found = values_and_problems(
            lambda: consumer.poll_columns(500).column("value").to_pylist(),
            lambda offset: consumer.seek(poisoned, offset),
        )
        assert found == (READABLE, PROBLEMS)


@pytest.mark.parametrize("kind", ["records", "columns"])
def test_a_consumer_goes_on_if_told_to(
    servers: str, poisoned: TopicPartition, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    values: list[bytes] = []
    with reader_of(servers, poisoned, **{"oncelog.skip.corrupt.batches": True}) as consumer:

        def is_done() -> bool:
            if kind == "records":
                values.extend(record.value for record in consumer.poll(500))
            else:
                values.extend(consumer.poll_columns(500).column("value").to_pylist())
            return consumer.position(poisoned) == END

        wait_until(is_done)
    assert values == READABLE
    for first, after in PROBLEMS:
        assert any(f"poisoned, partition 0: offsets {first} to {after - 1} cannot" in text for text in warnings(caplog))


def test_a_range_is_read_up_to_what_cannot_be(servers: str, poisoned: TopicPartition) -> None:
    values: list[bytes] = []
    with RangeReader(ClientConfig(bootstrap_servers=servers)) as reader:
        with pytest.raises(CorruptBatch) as caught:
            for chunk in reader.read(*poisoned, 0, END):
                values.extend(record.value for record in iter_records(chunk))
        assert (values, caught.value.offset) == ([b"a", b"b"], 2)
        with pytest.raises(CorruptBatch) as caught:
            for chunk in reader.read(*poisoned, 6, END):
                values.extend(to_arrow([chunk]).column("value").to_pylist())
        assert (values, caught.value.offset) == ([b"a", b"b", b"d"], 7)


@pytest.mark.parametrize("headers", [True, False])
def test_a_range_is_read_without_it_if_told_to(servers: str, poisoned: TopicPartition, headers: bool) -> None:
    with RangeReader(ClientConfig(bootstrap_servers=servers), skip_corrupt_batches=True) as reader:
        chunks = list(reader.read(*poisoned, 0, END))
    assert [record.value for chunk in chunks for record in iter_records(chunk)] == READABLE
    table = to_arrow(chunks, headers=headers)
    assert table.column("value").to_pylist() == READABLE
    assert table.column("offset").to_pylist() == [0, 1, 3, 6, 8]
