"""Input for both sides and the count of what came out, through confluent-kafka: a client that is neither side's."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 4
VALUE_BYTES = 100
TIMEOUT_S = 60.0
_QUIET = {"log_level": 0}


@dataclass(frozen=True, slots=True)
class Content:
    """Rows of a topic in any order: their number, and sums over all values, and over all keys with their values."""

    rows: int
    values: int
    keys_and_values: int


class Topics:
    """The topics of one broker."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, **_QUIET})

    def create(self, topic: str) -> str:
        for future in self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            future.result(TIMEOUT_S)
        return topic

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(TIMEOUT_S)

    def fill(self, topic: str, rows: int) -> Content:
        """Keys of eight digits and values of VALUE_BYTES random bytes, the same for every broker."""
        settings = {"linger.ms": 50, "partitioner": "murmur2_random", "queue.buffering.max.messages": 200_000}
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", **settings, **_QUIET})
        values = both = 0
        for number, (key, value) in enumerate(_generate(rows)):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
            values, both = _add(values, value), _add(both, value, key)
        if producer.flush(TIMEOUT_S):
            raise RuntimeError(f"{topic}: not everything was acknowledged within {TIMEOUT_S:.0f} s")
        return Content(rows, values, both)

    def read(self, topic: str) -> Content:
        """What a reader with read_committed sees up to the present end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "count",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                **_QUIET,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        rows = values = both = ended = 0
        deadline_s = time.monotonic() + TIMEOUT_S
        try:
            while ended < PARTITIONS:
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"{topic}: its end was not reached within {TIMEOUT_S:.0f} s")
                # It waits for as many as are asked for, so at the end of the topic for the whole timeout.
                for message in consumer.consume(10_000, 0.1):
                    if message.error():
                        ended += 1
                        continue
                    rows += 1
                    key, value = message.key() or b"", message.value() or b""
                    values, both = _add(values, value), _add(both, value, key)
        finally:
            consumer.close()
        return Content(rows, values, both)


def _add(total: int, value: bytes, key: bytes = b"") -> int:
    return (total + zlib.crc32(value, zlib.crc32(key))) & 0xFFFFFFFF


def _generate(rows: int) -> Iterator[tuple[bytes, bytes]]:
    source = random.Random(6)
    # Slices of one long random text: as hard to compress as random bytes, and much cheaper to make.
    text = source.randbytes(1 << 16)
    for number in range(rows):
        start = source.randrange(len(text) - VALUE_BYTES)
        yield b"%08d" % number, text[start : start + VALUE_BYTES]
