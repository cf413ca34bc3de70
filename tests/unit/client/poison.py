"""A topic with batches that cannot be read among others: some that a broker takes as they are, one damaged on disk."""

from __future__ import annotations

import time

from oncelog.core.codec import Codec
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.compression import compress
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.testing import BrokerProcess
from tests.conformance.batches import batch, record, varint
from tests.hostile.wire import Client

READABLE = [b"a", b"b", b"c", b"d", b"f"]
"""The values that can be read, of offsets 0, 1, 3, 6 and 8."""
PROBLEMS = [(2, 3), (4, 6), (7, 8)]
"""The first offset of each stretch that cannot be read, and the one after it."""


def make_poisoned_topic(broker: BrokerProcess, topic: str) -> TopicPartition:
    wire = Client(broker.bootstrap_servers)
    wire.ask(CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)]), 5)
    for data in (*_batches(), _good(b"e"), _good(b"f")):
        partition = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            acks=-1, timeout_ms=5_000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
        )
        answer, _ = wire.ask(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
    wire.close()
    _damage(broker, topic, b"e")
    return TopicPartition(topic, 0)


def _good(value: bytes) -> bytes:
    return build_batch([Record(0, 0, b"key", value)], timestamp_ms=int(time.time() * 1000))


def _batches() -> list[bytes]:
    key_too_long = b"\0\0\x02" + varint(50) + b"k\x01\0"
    half = record(0, b"key", b"b") + varint(len(key_too_long)) + key_too_long
    nonsense = compress(Codec.ZSTD, bytes(100))
    return [
        _good(b"a"),
        batch([b"", b""], section=half),
        _good(b"c"),
        batch([b"", b""], section=nonsense, attributes=Codec.ZSTD),
        _good(b"d"),
    ]


def _damage(broker: BrokerProcess, topic: str, value: bytes) -> None:
    """The value with this one byte becomes another; its batch keeps its checksum."""
    path = broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    stored = path.read_bytes()
    at = stored.rindex(b"\x06key\x02" + value) + 5
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"!")
