"""Where a consumer goes on in a partition: offsets of its group, of the reset policy, or looked up for it."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.client.admin_topics import TopicAdmin
from oncelog.client.arguments import to_partition
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import NO_POSITION, PartitionPosition, Positions
from oncelog.client.errors import ConfigurationError, ErrorCode, KafkaError
from oncelog.client.offsets import OffsetAndMetadata, fetch_offsets
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.list_offsets import OffsetSpec


class OffsetLookup:
    def __init__(self, admin: TopicAdmin, config: ConsumerConfig, positions: Positions) -> None:
        self._admin = admin
        self._config = config
        self._positions = positions

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; waits for transactions that are about to commit for it."""
        if self._config.group_id is None:
            raise ConfigurationError("committed() needs a group.id")
        cluster, wanted = self._admin.cluster, [to_partition(partition) for partition in partitions]
        return await fetch_offsets(cluster, self._config.group_id, wanted, cluster.deadline())

    async def offsets_at(self, partitions: Iterable[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        """For an `OffsetSpec` or a time, as far as this consumer may read; -1 where no record is that late."""
        wanted = dict.fromkeys((to_partition(partition) for partition in partitions), spec)
        found = await self._admin.list_offsets(wanted, isolation=self._config.isolation) if wanted else {}
        return {partition: result.offset for partition, result in found.items()}

    async def seek(self, partitions: Iterable[TopicPartition], spec: int) -> None:
        """To the end where no record is that late. All assigned partitions, if none are named."""
        found = await self.offsets_at(list(partitions) or self._positions.partitions(), spec)
        late = [partition for partition, offset in found.items() if offset < 0]
        found |= await self.offsets_at(late, OffsetSpec.LATEST)
        for partition, offset in found.items():
            self._positions[partition].seek(offset)

    async def find(self, missing: list[PartitionPosition]) -> None:
        """Give positions to partitions that have none."""
        versions = [entry.version for entry in missing]
        # Where this consumer began. The reset policy was asked then, and by now the latest would skip what it read.
        found = {entry.partition: entry.began_at for entry in missing if entry.began_at != NO_POSITION}
        if self._config.group_id is not None:
            committed = await self.committed(entry.partition for entry in missing)
            found |= {partition: stored.offset for partition, stored in committed.items()}
        found |= await self._by_policy([entry.partition for entry in missing if entry.partition not in found])
        for entry, version in zip(missing, versions, strict=True):
            if entry.version == version and entry.position == NO_POSITION:
                entry.seek(found[entry.partition])

    async def reset(self, entry: PartitionPosition, version: int, asked: int) -> None:
        """A broker has no such offset: go on where the policy says, unless the application goes elsewhere meanwhile."""
        if self._config.offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{entry.partition} has no offset {asked} any more, or not yet, and auto.offset.reset=none: "
                "seek to where to go on",
            )
        found = await self._by_policy([entry.partition])
        if entry.version == version:
            entry.seek(found[entry.partition])

    async def _by_policy(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if partitions and self._config.offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"no committed offset for {', '.join(map(str, partitions))} and auto.offset.reset=none: "
                "seek, or commit one",
            )
        spec = OffsetSpec.EARLIEST if self._config.offset_reset == "earliest" else OffsetSpec.LATEST
        return await self.offsets_at(partitions, spec)
