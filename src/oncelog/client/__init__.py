"""A Kafka client that knows transactions: for Oncelog, Apache Kafka and what is compatible with them.

Everything takes a `ClientConfig` (picklable), blocks, is thread-safe, retries what may be retried, and is bounded.

    config.ClientConfig             where the brokers are, and all timeouts
    errors                          KafkaError and what to do about each kind
    transaction.TransactionClient   init, add_partitions, add_offsets, commit_offsets, end, fresh_epoch, fetch_offsets
    batch_producer.BatchProducer    produce(topic, partition, batches, base_sequence) with a given producer id and epoch
    fetcher.RangeReader             read(topic, partition, start, end): chunks of a range, read_committed or not
    columns                         to_arrow(chunks), encode_columns(value, key=...), partition_column(keys, count)
    admin.Admin                     topics, offsets, settings, groups, transactions, producers, cluster

`columns` needs pyarrow and numpy (the extra `client`); nothing else here does.
"""

from oncelog.client.admin import Admin, NewTopic, OffsetSpec
from oncelog.client.batch_producer import BatchProducer, ProduceSummary
from oncelog.client.config import ClientConfig
from oncelog.client.errors import (
    AbortableError,
    ConfigurationError,
    ConnectionLost,
    FatalError,
    KafkaError,
    ProducerFenced,
    TimedOut,
    TransactionError,
)
from oncelog.client.fetcher import FetchedChunk, RangeReader
from oncelog.client.offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.transaction import TransactionClient
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition

__all__ = [
    "AbortableError",
    "Admin",
    "BatchProducer",
    "ClientConfig",
    "ConfigurationError",
    "ConnectionLost",
    "FatalError",
    "FetchedChunk",
    "GroupMetadata",
    "IsolationLevel",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetSpec",
    "ProduceSummary",
    "ProducerFenced",
    "ProducerIdAndEpoch",
    "RangeReader",
    "TimedOut",
    "TopicPartition",
    "TransactionClient",
    "TransactionError",
]
