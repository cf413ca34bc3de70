"""Record batches to and from Arrow columns. Needs the `client` extra (pyarrow, numpy), which the rest does not.

to_arrow(chunks)                     fetched chunks -> one RecordBatch of SCHEMA
decode_batches(partition, data, ...) the same for batches that come from elsewhere, such as a segment file
encode_columns(value, key=..., ...)  columns -> batches for BatchProducer
partition_column(keys, count)        the partition of every key (murmur2)
"""

from oncelog.client.column_decoder import HEADERS_TYPE, SCHEMA, decode_batches, to_arrow
from oncelog.client.column_encoder import BATCH_BYTES, encode_columns
from oncelog.client.column_hashing import murmur2_column, partition_column

__all__ = [
    "BATCH_BYTES",
    "HEADERS_TYPE",
    "SCHEMA",
    "decode_batches",
    "encode_columns",
    "murmur2_column",
    "partition_column",
    "to_arrow",
]
