"""Record batches to and from Arrow columns. Needs the `client` extra (pyarrow, numpy), which the rest does not.

arrow_batches(chunk)                 a fetched chunk -> RecordBatches of SCHEMA
to_arrow(chunks)                     fetched chunks -> one RecordBatch, if they fit
decode_batches(partition, data, ...) the same for batches that come from elsewhere, such as a segment file
encode_columns(value, key=..., ...)  columns -> batches for BatchProducer
encode_by_partition(value, count, .) columns -> batches for each partition
group_rows(numbers)                  partition numbers, or others -> the rows of each
partition_column(keys, count)        the partition of every key (murmur2)
"""

from oncelog.client.column_extra import needs_columns

with needs_columns():
    from oncelog.client.column_decoder import (
        HEADERS_TYPE,
        SCHEMA,
        UNPACKED_BYTES,
        arrow_batches,
        decode_batches,
        first_columns,
        to_arrow,
    )
    from oncelog.client.column_encoder import BATCH_BYTES, encode_columns
    from oncelog.client.column_hashing import murmur2_column, partition_column
    from oncelog.client.column_routing import encode_by_partition, group_rows

__all__ = [
    "BATCH_BYTES",
    "HEADERS_TYPE",
    "SCHEMA",
    "UNPACKED_BYTES",
    "arrow_batches",
    "decode_batches",
    "encode_by_partition",
    "encode_columns",
    "first_columns",
    "group_rows",
    "murmur2_column",
    "partition_column",
    "to_arrow",
]
