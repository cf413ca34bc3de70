"""A Kafka client that knows transactions: for Oncelog, Apache Kafka and what is compatible with them.

For applications, by Kafka's configuration names; but for the pool each is also an asynchronous class (`AsyncProducer`):

    producer.Producer               send, flush, transactions, two-phase commit
    producer_pool.ProducerPool      transactional producers for many threads
    consumer.Consumer               groups and assignment, poll, seek, commit

For those who manage a cluster, by `ClientConfig`; also as `AsyncAdmin`:

    admin.Admin                     topics, offsets, settings, groups, transactions, producers, cluster

For programs that distribute one transaction over many processes, by `ClientConfig` (picklable):

    transaction.TransactionClient   init, share, commit_offsets, end, fresh_epoch, fetch_offsets: for the driver
    batch_producer.BatchProducer    produce, write, flush: for a worker that was given what `share` returned
    fetcher.RangeReader             read(topic, partition, start, end): chunks of a range, read_committed or not
    worker.worker_client            connections that stay open from task to task, for both
    settings                        the settings above as tables, for options of a connector
    columns                         arrow_batches(chunk), encode_columns(value, key=...), partition_column(keys, count)

All block, are thread-safe, retry what may be retried, and are bounded in time; `errors` says what each failure means.
`columns` needs pyarrow and numpy (the extra `client`); nothing else here does.
"""

from oncelog.client.accumulator import RecordFuture, RecordMetadata
from oncelog.client.admin import Admin, AsyncAdmin, NewTopic, OffsetSpec
from oncelog.client.batch_producer import BatchProducer, ProduceSummary
from oncelog.client.config import ClientConfig
from oncelog.client.consumer import AsyncConsumer, Consumer
from oncelog.client.consumer_records import ConsumerRecord
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import (
    AbortableError,
    BufferExhausted,
    CommitFailed,
    ConfigurationError,
    ConnectionLost,
    CorruptBatch,
    FatalError,
    IllegalState,
    KafkaError,
    ProducerFenced,
    TimedOut,
    TransactionError,
)
from oncelog.client.fetcher import FetchedChunk, RangeReader
from oncelog.client.offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.prepared_transaction import Completion, PreparedTransaction
from oncelog.client.producer import AsyncProducer, Producer
from oncelog.client.producer_pool import ProducerPool
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.client.topic_facts import TopicFacts
from oncelog.client.transaction import TransactionClient
from oncelog.client.visibility import IsolationLevel
from oncelog.client.worker import WorkerClient, worker_client
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition

__all__ = [
    "AbortableError",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchProducer",
    "BufferExhausted",
    "ClientConfig",
    "CommitFailed",
    "Completion",
    "ConfigurationError",
    "ConnectionLost",
    "Consumer",
    "ConsumerRecord",
    "CorruptBatch",
    "EncodedBatch",
    "FatalError",
    "FetchedChunk",
    "GroupMetadata",
    "IllegalState",
    "IsolationLevel",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetSpec",
    "PreparedTransaction",
    "ProduceSummary",
    "Producer",
    "ProducerFenced",
    "ProducerIdAndEpoch",
    "ProducerPool",
    "RangeReader",
    "RecordFuture",
    "RecordMetadata",
    "SharedTransaction",
    "TimedOut",
    "TopicFacts",
    "TopicPartition",
    "TransactionClient",
    "TransactionError",
    "WorkerClient",
    "worker_client",
]
