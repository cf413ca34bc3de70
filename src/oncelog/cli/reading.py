"""The ranges that `oncelog consume` reads: `--from` and `--to` become offsets of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.hints import held_back_hint, outside_hint, too_late_hint
from oncelog.client.admin import Admin
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.positions import PositionKind, find_offsets
from oncelog.monitoring.record_places import start_of_last

Offsets = dict[TopicPartition, int]


def range_reader(access: ClusterAccess, config: ConsumerConfig) -> RangeReader:
    return RangeReader(
        config.client,
        isolation=config.isolation,
        fetch_bytes=config.fetch.partition_max_bytes,
        check_crcs=config.check_crcs,
        skip_corrupt_batches=config.skip_corrupt_batches,
        idle_timeout_ms=access.timeout_ms,
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Start and stop offsets of each partition."""

    offsets: dict[TopicPartition, PartitionOffsets]
    starts: Offsets
    stops: Offsets
    """At most what readers can get now."""
    wanted_stops: Offsets
    isolation: IsolationLevel

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.starts})

    def held_back(self) -> Iterator[tuple[TopicPartition, PartitionOffsets]]:
        """Partitions on which an open transaction holds back wanted records."""
        if self.isolation is IsolationLevel.READ_COMMITTED:
            for partition, found in self.offsets.items():
                if found.last_stable < min(self.wanted_stops[partition], found.end):
                    yield partition, found

    def hint(self, access: ClusterAccess) -> None:
        for partition, found in self.held_back():
            click.echo(held_back_hint(access, partition, found), err=True)


class Planner:
    """Finds the offsets for `--from` and `--to`."""

    def __init__(self, access: ClusterAccess, admin: Admin, config: ConsumerConfig) -> None:
        self._access = access
        self._admin = admin
        self._config = config

    def plan(self, partitions: list[TopicPartition], start: str | None, stop: str | None) -> Reading:
        offsets = partition_offsets(self._admin, partitions)
        limits = {partition: found.limit(self._config.isolation) for partition, found in offsets.items()}
        now_ms = parsing.now_ms()
        start = "earliest" if start is None else start
        starts = self._within(offsets, self._place(start, now_ms, offsets, limits))
        if parsing.position(start, now_ms).kind is PositionKind.TIME_MS:
            for partition in partitions:
                if starts[partition] == limits[partition]:
                    progress.say(too_late_hint(partition, start, starts[partition]))
        ends = {partition: found.end for partition, found in offsets.items()}
        wanted = (
            ends
            if stop is None or stop == "latest"
            else self._within(offsets, self._place(stop, now_ms, offsets, limits))
        )
        stops = {partition: min(wanted[partition], limits[partition]) for partition in partitions}
        return Reading(offsets, starts, stops, wanted, self._config.isolation)

    def _place(
        self, text: str, now_ms: int, offsets: dict[TopicPartition, PartitionOffsets], limits: Offsets
    ) -> Offsets:
        position = parsing.position(text, now_ms)
        if position.kind is not PositionKind.RELATIVE:
            return find_offsets(self._admin, position, offsets, limits)
        if position.number > 0:
            raise click.BadParameter(f"{text!r}: write -N for the last N records")
        with range_reader(self._access, self._config) as reader:
            count = -position.number
            return {p: start_of_last(reader, p, offsets[p].start, limits[p], count) for p in offsets}

    def _within(self, offsets: dict[TopicPartition, PartitionOffsets], wanted: Offsets) -> Offsets:
        """The nearest offsets that the logs have."""
        nearest = {p: found.nearest(wanted[p]) for p, found in offsets.items()}
        for partition, found in offsets.items():
            if nearest[partition] != wanted[partition]:
                progress.say(outside_hint(partition, found, wanted[partition], nearest[partition]))
        return nearest
