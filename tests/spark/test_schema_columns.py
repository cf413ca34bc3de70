"""Columns of Spark with schemas of a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import oncelog.spark
from oncelog.schemas.registry_client import RegistryClient, RegistryError
from oncelog.schemas.schema import AVRO, JSON, Schema
from oncelog.schemas.serialization import Deserializer, Serializer
from oncelog.schemas.wire_format import frame
from oncelog.spark.schema_columns import decoded, encoded
from oncelog.spark.source_options import OptionError
from oncelog.testing import BrokerProcess
from tests.registries import serving_registry

ORDER = Schema(
    json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
        }
    ),
    AVRO,
)
CLOSED = Schema('{"type": "object", "properties": {"id": {"type": "integer"}}, "additionalProperties": false}', JSON)


@pytest.fixture
def registry(oncelog_broker: BrokerProcess, name: Callable[[str], str]) -> Iterator[str]:
    with serving_registry(oncelog_broker.bootstrap_servers, name("schemas")) as address:
        yield address


def test_rows_become_bytes_with_a_schema_and_rows_again(spark: Any, registry: str) -> None:
    from pyspark.sql import functions as sf

    rows = spark.createDataFrame([(1, "ä"), (2, None), (None, None)], "id long, note string")
    text = sf.when(sf.col("id").isNotNull(), sf.to_json(sf.struct("id", "note")))
    framed = rows.select(oncelog.spark.to_registry(text, registry, topic="orders", schema=ORDER).alias("value"))
    written = [None if row.value is None else bytes(row.value) for row in framed.collect()]
    deserialize = Deserializer(RegistryClient(registry))
    assert [deserialize("orders", data) for data in written] == [{"id": 1, "note": "ä"}, {"id": 2, "note": None}, None]
    assert RegistryClient(registry).latest("orders-value").schema.kind == AVRO

    kept = spark.createDataFrame([(data,) for data in (*written, b"\0bad")], "value binary")
    plain = oncelog.spark.from_registry("value", registry, errors="null")
    found = kept.select(sf.from_json(plain, "id long, note string").alias("order")).select("order.*").collect()
    assert [tuple(row) for row in found] == [(1, "ä"), (2, None), (None, None), (None, None)]


def test_bytes_that_do_not_fit_fail_unless_they_may_be_null(registry: str) -> None:
    client = RegistryClient(registry)
    good = Serializer(client, CLOSED)("t", {"id": 1})
    no_text = frame(client.register("t-value", CLOSED), b'{"id": "\\ud800"}')
    values = pa.array([good, b"no schema", None, no_text], pa.binary())
    assert decoded(Deserializer(client), values, "null").to_pylist() == ['{"id": 1}', None, None, None]
    with pytest.raises(ValueError, match="id of a schema"):
        decoded(Deserializer(client), values, "fail")
    with pytest.raises(RegistryError, match="not found"):
        decoded(Deserializer(client), pa.array([b"\0\0\0\0\x63x"], pa.binary()), "null")


@pytest.mark.parametrize("text", ["{", "null", '{"other": 1}', '{"id": "x"}'])
def test_text_that_does_not_fit_is_not_written(registry: str, text: str) -> None:
    with pytest.raises(ValueError):
        encoded(Serializer(RegistryClient(registry), CLOSED), "t", pa.array([None, text], pa.string()))


def test_keys_and_the_newest_version(registry: str) -> None:
    client = RegistryClient(registry)
    client.register("t-key", CLOSED)
    [data] = encoded(Serializer(client, is_key=True), "t", pa.array(['{"id": 1}'])).to_pylist()
    assert data[5:] == b'{"id":1}'


def test_options_that_are_wrong_are_refused_by_the_driver() -> None:
    with pytest.raises(OptionError, match="no address of a registry"):
        oncelog.spark.to_registry("value", "127.0.0.1:8081", topic="t")
    with pytest.raises(OptionError, match="fail, null"):
        oncelog.spark.from_registry("value", "http://127.0.0.1:8081", errors="skip")
