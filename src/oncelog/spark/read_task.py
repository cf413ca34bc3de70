"""Reads one range on an executor: each answer of the broker becomes one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from oncelog.client.columns import to_arrow
from oncelog.client.fetch import FetchSettings
from oncelog.client.visibility import IsolationLevel
from oncelog.spark.planning import OffsetRange
from oncelog.spark.source_options import SourceOptions
from oncelog.spark.worker_client import worker_client

ARROW_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
HEADERS_FIELD = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""Exactly what Spark derives from the source's schema: it compares types, order and nullability before it reads."""


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Every visible record of the range, once, in order."""
    isolation = IsolationLevel.READ_COMMITTED if options.read_committed else IsolationLevel.READ_UNCOMMITTED
    settings = FetchSettings(
        isolation, max_bytes=options.fetch_bytes_max, partition_max_bytes=options.partition_fetch_bytes_max
    )
    schema = pa.schema([*ARROW_FIELDS, HEADERS_FIELD] if options.include_headers else ARROW_FIELDS)
    for chunk in worker_client(options.client).read(wanted, settings):
        batch = to_arrow([chunk], headers=options.include_headers)
        if batch.num_rows:
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
