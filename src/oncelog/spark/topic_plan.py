"""Which partitions a source reads, and from where to where: the subscription and positions put to the broker."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping

from oncelog.client import (
    IsolationLevel,
    KafkaError,
    OffsetAndMetadata,
    TimedOut,
    TopicPartition,
    WorkerClient,
    worker_client,
)
from oncelog.core.errors import ErrorCode
from oncelog.spark.offsets import EARLIEST, LATEST, Offsets, StreamOffset, list_offsets
from oncelog.spark.planning import OffsetRange
from oncelog.spark.source_options import OptionError, Position, SourceOptions

logger = logging.getLogger(__name__)

OPEN_OFFSETS_S = 15 * 60.0
"""How long offsets in an open transaction are waited for. By default brokers end all that are open for longer."""


class DataLost(RuntimeError):
    """Records between where the stream is and what the topic still has are gone."""


def data_lost(what: str) -> DataLost:
    return DataLost(
        f"{what}. Set the option failOnDataLoss to false to go on with what is there, or start a new checkpoint"
    )


class TopicPlan:
    """Offsets of the partitions a source reads. One per query, on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._isolation = IsolationLevel.READ_COMMITTED if options.read_committed else IsolationLevel.READ_UNCOMMITTED
        self._said: set[str] = set()
        """A warning is given once: an idle stream looks a hundred times a second."""

    @property
    def _client(self) -> WorkerClient:
        return worker_client(self._options.client)

    def partitions(self) -> list[TopicPartition]:
        """The partitions there are now. Raises OptionError when one that is named in an option does not exist."""
        found, missing = self._look_up()
        if missing:
            raise OptionError(missing[0])
        return found

    def _look_up(self) -> tuple[list[TopicPartition], list[str]]:
        """The partitions that exist now, and an error message for each that an option names and that does not exist."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            every = self._client.partitions_of(None)
            return sorted(p for name, parts in every.items() if pattern.fullmatch(name) for p in parts), []
        names = subscription.topics or tuple(sorted({p.topic for p in subscription.partitions}))
        found = self._client.partitions_of(names)
        missing = [
            f"topic {name} does not exist on {self._options.client.bootstrap_servers}: create it, or correct the "
            "option " + ("subscribe" if subscription.topics else "assign")
            for name in names
            if name not in found
        ]
        if subscription.topics:
            return sorted(p for parts in found.values() for p in parts), missing
        missing += [
            f"option assign: topic {p.topic} has {len(found[p.topic])} partitions, not {p}"
            for p in subscription.partitions
            if p.topic in found and p not in found[p.topic]
        ]
        return sorted(p for p in subscription.partitions if p in found.get(p.topic, ())), missing

    def starting_offsets(self) -> Offsets:
        return self._resolve(self._options.starting, "starting")

    def ending_offsets(self) -> Offsets:
        """Not beyond the end of a partition: a task would wait there for records to come."""
        ends = self._resolve(self._options.ending, "ending")
        if self._options.ending.offsets is None:
            return ends
        written = list_offsets(self._client, dict.fromkeys(ends, LATEST), IsolationLevel.READ_UNCOMMITTED)
        for partition, end in sorted(ends.items()):
            if end > written[partition]:
                self._lost(f"{partition} ends at {written[partition]}, before offset {end} of the ending position")
        return {partition: min(end, written[partition]) for partition, end in ends.items()}

    def check_order(self, start: Offsets, end: Offsets) -> None:
        """Raise OptionError for a range of a table that ends before it starts; a group may stand behind it."""
        for partition in () if self._options.starting.committed else sorted(end):
            if start[partition] > end[partition]:
                raise OptionError(
                    f"{partition}: the starting position, offset {start[partition]}, lies behind the ending position, "
                    f"offset {end[partition]}"
                )

    def latest_offsets(self, known: StreamOffset | None = None) -> StreamOffset:
        """Ends of all partitions. Where data may be lost, topics that vanished are left out (see begin_of_next).

        When all of them have, a stream waits at the position it has.
        """
        if self._options.fail_on_data_loss:
            return self._ends(self.partitions())
        found, missing = self._look_up()
        if missing and not found:
            if known is None:
                raise OptionError(missing[0])
            return StreamOffset(known.ends, topic_ids=known.topic_ids)
        return self._ends(found)

    def _ends(self, partitions: list[TopicPartition]) -> StreamOffset:
        ids = self._client.topic_ids({partition.topic for partition in partitions})
        return StreamOffset(self._list(partitions, LATEST), topic_ids=ids)

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._list(partitions, EARLIEST)

    def _resolve(self, position: Position, what: str) -> Offsets:
        partitions = self.partitions()
        if position.committed:
            return self._committed(partitions)
        if position.everywhere is not None:
            return self._list(partitions, position.everywhere)
        if position.timestamp_ms is not None:
            return self._at_times(dict.fromkeys(partitions, position.timestamp_ms), what)
        given = position.offsets if position.offsets is not None else position.timestamps or {}
        self._check_complete(given, partitions, what)
        if position.timestamps is not None:
            return self._at_times(given, what)
        return self._concrete(given)

    def _check_complete(self, given: Offsets, partitions: list[TopicPartition], what: str) -> None:
        missing, unknown = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
        if missing or unknown:
            problem = f"leaves out {missing[0]}" if missing else f"names {unknown[0]}, which is not read"
            raise OptionError(f"the {what} position {problem}: it must name exactly the partitions that are read")

    def _concrete(self, given: Offsets) -> Offsets:
        earliest = self._list([p for p, o in given.items() if o == EARLIEST], EARLIEST)
        latest = self._list([p for p, o in given.items() if o == LATEST], LATEST)
        return {**given, **earliest, **latest}

    def _at_times(self, times: Offsets, what: str) -> Offsets:
        found = list_offsets(self._client, times, self._isolation)
        late = sorted(p for p in times if found[p] < 0)
        if late and what == "starting" and self._options.timestamp_strategy == "error":
            raise OptionError(
                f"{late[0]} has no record at or after {times[late[0]]}: choose an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return {**found, **self._list(late, LATEST)}

    def _committed(self, partitions: list[TopicPartition]) -> Offsets:
        committed = self._decided_offsets(self._options.group_id or "")
        known = {p: committed[p].offset for p in partitions if p in committed}
        return {**self._list([p for p in partitions if p not in known], EARLIEST), **known}

    def _decided_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """A driver that died may have left a transaction open: only when it ends, the group stands somewhere again."""
        until_s = time.monotonic() + OPEN_OFFSETS_S
        while True:
            try:
                return self._client.group_offsets(group, require_stable=True)
            except TimedOut as error:
                last = error.__cause__
                is_open = isinstance(last, KafkaError) and last.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
                if not is_open or time.monotonic() >= until_s:
                    raise
            self._warn(
                f"offsets of group {group} are in a transaction that is open, perhaps of a driver that died: waiting "
                "until it ends. Its transactional id is in the output of `oncelog txn list`; if its driver is gone, "
                "`oncelog txn fence` ends it now"
            )

    def _list(self, partitions: Iterable[TopicPartition], which: int) -> Offsets:
        wanted = list(partitions)
        if not wanted:
            return {}
        return list_offsets(self._client, dict.fromkeys(wanted, which), self._isolation)

    def begin_of_next(self, known: StreamOffset, latest: StreamOffset) -> StreamOffset:
        """Where the batch after `known` begins, and what is new in it: partitions that appeared, at their beginning.

        Raises DataLost for a topic that is gone, another one than it was, or shorter than the stream has read already,
        and for a partition that appeared and has lost its beginning by now. Where data may be lost, a partition that is
        shorter is new as well, from where it ends now.
        """
        again = self._recreated(known.topic_ids, latest.topic_ids)
        begin = {p: offset for p, offset in known.ends.items() if p.topic not in again}
        shorter = self._check_not_lost(begin, latest.ends)
        first = self._list([p for p in latest.ends if p not in begin], EARLIEST)
        self._check_whole(first)
        first |= shorter
        return StreamOffset({p: o for p, o in {**begin, **first}.items() if p in latest.ends}, first)

    def _recreated(self, known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
        """Topics that were deleted and created again. Where data may be lost, they are read from their beginning."""
        again = {topic for topic in known.keys() & now.keys() if known[topic] != now[topic]}
        for topic in sorted(again):
            self._lost(
                f"topic {topic} was deleted and created again (its id was {known[topic]} and is {now[topic]}): what "
                "the stream had not read of the old one is gone, and its offsets say nothing about the new one"
            )
        return again

    def _check_not_lost(self, start: Offsets, latest: Offsets) -> Offsets:
        """The ends of partitions that are shorter than they were."""
        shorter = {}
        for partition, offset in sorted(start.items()):
            if partition not in latest:
                self._lost(f"{partition} does not exist any more; the stream had read it up to {offset}")
            elif latest[partition] < offset and (end := self._high_watermark(partition)) < offset:
                self._lost(
                    f"{partition} ends at {end}, before offset {offset} where the stream is: the topic was deleted and "
                    "created again, or lost its log"
                )
                shorter[partition] = end
        return shorter

    def _check_whole(self, first: Offsets) -> None:
        for partition, offset in sorted(first.items()):
            if offset > 0:
                self._lost(
                    f"{partition} is new to the stream, and its offsets 0 to {offset} are deleted already "
                    "(retention, or DeleteRecords) and were never read"
                )

    def _high_watermark(self, partition: TopicPartition) -> int:
        """Where records end, those of open transactions included: a stream that was read_uncommitted may be there."""
        return list_offsets(self._client, {partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)[partition]

    def batch_ranges(self, start: StreamOffset, end: StreamOffset, *, is_first: bool) -> list[OffsetRange]:
        """What a batch of a stream reads, the same whenever it is run. Raises DataLost when that is not possible."""
        begin = {**start.ends, **end.first}
        unknown = {p: offset for p, offset in end.ends.items() if p not in begin}
        if unknown:
            begin |= self._begin_of_earlier_version(unknown, is_first=is_first)
        again = self._recreated(end.topic_ids, self._client.topic_ids({p.topic for p in end.ends}))
        return self.ranges(begin, {p: offset for p, offset in end.ends.items() if p.topic not in again})

    def _begin_of_earlier_version(self, ends: Offsets, *, is_first: bool) -> Offsets:
        """Where a batch began whose plan does not say so. Only what cannot have changed since is used."""
        position = self._options.starting if is_first else Position(everywhere=EARLIEST)
        found = self._resolve(position, "starting") if is_first else self._list(ends, EARLIEST)
        given = position.offsets or {}
        for partition, end in sorted(ends.items()):
            if found.get(partition) != 0 and end != 0 and given.get(partition, LATEST) < 0:
                self._lost(
                    f"{partition}: the batch that ends at {end} was planned by an earlier version, which did not keep "
                    "where it began. Give that in startingOffsets as JSON to run it again as it was"
                )
        return {partition: min(found.get(partition, end), end) for partition, end in ends.items()}

    def ranges(self, begin: Offsets, end: Offsets) -> list[OffsetRange]:
        """What lies between, without what is deleted already. Raises DataLost unless failOnDataLoss is false."""
        end = self._still_there(end)
        earliest = self._list([p for p in end if end[p] > begin[p]], EARLIEST)
        ranges = []
        for partition in sorted(earliest):
            first = begin[partition]
            if first < earliest[partition]:
                self._lost(
                    f"{partition}: offsets {first} to {min(earliest[partition], end[partition])} are deleted already "
                    "(retention, or DeleteRecords) and were never read"
                )
                first = earliest[partition]
            if first < end[partition]:
                ranges.append(OffsetRange(partition, first, end[partition]))
        return ranges

    def _still_there(self, end: Offsets) -> Offsets:
        """Where data may be lost, a batch that was planned before a topic vanished is read without it."""
        if self._options.fail_on_data_loss:
            return end
        found = self._client.partitions_of({partition.topic for partition in end})
        return {p: offset for p, offset in end.items() if p in found.get(p.topic, ())}

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_lost(what)
        self._warn(f"{what}; the query goes on, as failOnDataLoss is false")

    def _warn(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s", what)
