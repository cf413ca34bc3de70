"""Columns with schemas of a registry: bytes in Confluent's wire format as JSON text, and JSON text as such bytes.

Each Python worker keeps the schemas that it has met. Needs the extra `registry` on every worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from oncelog.schemas.registry_client import RegistryClient
from oncelog.schemas.schema import InvalidSchema, Schema
from oncelog.schemas.serialization import Deserializer, Serializer
from oncelog.spark.source_options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column

ERRORS: Final = ("fail", "null")


def from_registry(column: Column | str, registry: str, *, errors: str = "fail") -> Column:
    """JSON text of keys or values that have the id of a schema in front, of any kind; `from_json` makes columns of it.

    `registry` is its address: http://host:port, or https://user:password@host:port. With `errors="null"`, bytes that no
    schema fits become null; a registry that does not answer, or does not know the schema, always fails the task.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    _client(registry)
    if errors not in ERRORS:
        raise OptionError(f"errors={errors!r}: it is one of {', '.join(ERRORS)}")

    def texts(values: pa.Array) -> pa.Array:
        return decoded(_deserializer(registry), values, errors)

    return _column(arrow_udf, texts, "string", column)


def to_registry(
    column: Column | str, registry: str, *, topic: str, schema: Schema | None = None, is_key: bool = False
) -> Column:
    """Bytes of JSON text, as values of `topic`, or as its keys. Null stays null: a tombstone.

    The schema is registered as the next version of `<topic>-value` (`<topic>-key`) when the first row is written;
    without one, the newest version is used. `to_json` leaves out fields that are null: where a schema gives them no
    default, call it with `{"ignoreNullFields": "false"}`.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    _client(registry)

    def framed(texts: pa.Array) -> pa.Array:
        return encoded(_serializer(registry, schema, is_key), topic, texts)

    return _column(arrow_udf, framed, "binary", column)


def _column(arrow_udf: Any, function: Callable[[pa.Array], pa.Array], kind: str, column: Column | str) -> Column:
    """PySpark's own types want the kind of function to be named, and PySpark warns whoever does."""
    found: Column = arrow_udf(function, kind)(column)
    return found


def decoded(deserializer: Deserializer, values: pa.Array, errors: str) -> pa.Array:
    return pa.array([_text(deserializer, data, errors) for data in values.to_pylist()], pa.string())


def _text(deserializer: Deserializer, data: bytes | None, errors: str) -> bytes | None:
    """In UTF-8, which does not have all that JSON has: half a surrogate pair does not fit either."""
    if data is None:
        return None
    try:
        return json.dumps(deserializer("", data), ensure_ascii=False).encode()
    except InvalidSchema:
        raise
    except ValueError:
        if errors == "fail":
            raise
        return None


def encoded(serializer: Serializer, topic: str, texts: pa.Array) -> pa.Array:
    return pa.array([_bytes(serializer, topic, text) for text in texts.to_pylist()], pa.binary())


def _bytes(serializer: Serializer, topic: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    value: Any = json.loads(text)
    if value is None:
        raise ValueError("the JSON text null has no schema: a null column writes a tombstone")
    return serializer(topic, value)


@lru_cache(maxsize=16)
def _client(registry: str) -> RegistryClient:
    try:
        return RegistryClient(registry)
    except ValueError as error:
        raise OptionError(str(error)) from error


@lru_cache(maxsize=16)
def _deserializer(registry: str) -> Deserializer:
    return Deserializer(_client(registry))


@lru_cache(maxsize=256)
def _serializer(registry: str, schema: Schema | None, is_key: bool) -> Serializer:
    return Serializer(_client(registry), schema, is_key=is_key)
