"""The columns a DataFrame must have to be written, and their plain form: those of Spark's Kafka sink.

| column | type | needed |
| --- | --- | --- |
| value | string or binary | yes; null is a tombstone |
| key | string or binary | no |
| topic | string | when no topic is given to the sink; a row's own topic wins over it |
| partition | int | no; null leaves the choice to Kafka's partitioner |
| headers | array<struct<key: string, value: binary>> | no |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.spark.source_options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

COLUMNS = ("key", "value", "topic", "partition", "headers")


def plain_columns(frame: DataFrame, default_topic: str | None) -> dict[str, Column]:
    """Those of COLUMNS that the frame has, in their plain form. Raises OptionError.

    They are expressions by name, so those of one micro-batch serve all others of the query.
    """
    from pyspark.sql import functions as sf

    given = {field.name.lower(): field.dataType for field in frame.schema.fields}
    _check_names(frame, given, default_topic)
    columns: dict[str, Column] = {name: _bytes(name, given[name]) for name in ("key", "value") if name in given}
    if "topic" in given:
        _check_type("topic", given["topic"], "string")
        topic = sf.col("topic") if default_topic is None else sf.coalesce(sf.col("topic"), sf.lit(default_topic))
        columns["topic"] = topic.alias("topic")
    if "partition" in given:
        _check_type("partition", given["partition"], "int")
        columns["partition"] = sf.col("partition")
    if "headers" in given:
        columns["headers"] = _headers(given["headers"])
    return columns


def _check_names(frame: DataFrame, given: dict[str, DataType], default_topic: str | None) -> None:
    if "value" not in given:
        raise OptionError(f"the rows to write need a column value; they have {', '.join(frame.columns)}")
    unknown = [name for name in frame.columns if name.lower() not in COLUMNS]
    if unknown:
        raise OptionError(
            f"column {unknown[0]} would be lost: rows to write have only {', '.join(COLUMNS)}. "
            "Put it into value (for example with to_json(struct(...))), or leave it out with select"
        )
    if default_topic is None and "topic" not in given:
        raise OptionError("no topic: give the sink a topic, or the rows a column topic")


def _bytes(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as sf

    if kind.simpleString() not in ("string", "binary", "void"):
        raise OptionError(f"column {name} is {kind.simpleString()}; it must be string or binary")
    return sf.col(name) if kind.simpleString() == "binary" else sf.col(name).cast("binary").alias(name)


def _check_type(name: str, kind: DataType, wanted: str) -> None:
    if kind.simpleString() != wanted:
        raise OptionError(f"column {name} is {kind.simpleString()}; it must be {wanted}")


def _headers(kind: DataType) -> Column:
    from pyspark.sql import functions as sf

    if kind.simpleString() != "array<struct<key:string,value:binary>>":
        raise OptionError(
            f"column headers is {kind.simpleString()}; it must be array<struct<key: string, value: binary>>"
        )
    return sf.col("headers")
