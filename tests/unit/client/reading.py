"""What is in a topic, read without any of the client's accidents."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.client import Admin, ClientConfig, IsolationLevel, OffsetSpec, RangeReader, TopicPartition
from oncelog.client.consumer_records import ConsumerRecord, iter_records


class Reading:
    def __init__(self, servers: str) -> None:
        config = ClientConfig(bootstrap_servers=servers)
        self.admin = Admin(config)
        self._readers = {level: RangeReader(config, isolation=level) for level in IsolationLevel}

    def records(
        self, topic: str, partitions: Iterable[int] = (0, 1), isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        for number in partitions:
            partition = TopicPartition(topic, number)
            end = self.admin.list_offsets({partition: OffsetSpec.LATEST}, isolation=isolation)[partition].offset
            for chunk in self._readers[isolation].read(topic, number, 0, end):
                found += iter_records(chunk)
        return found

    def values(self, topic: str, partitions: Iterable[int] = (0, 1)) -> list[bytes]:
        """Committed values, in the order of partitions and offsets."""
        return [record.value for record in self.records(topic, partitions)]

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()
        for reader in self._readers.values():
            reader.close()
