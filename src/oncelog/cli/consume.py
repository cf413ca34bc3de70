"""`oncelog consume`: records to the standard output, up to the end of the topic or for ever."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.cli import parsing, record_output
from oncelog.cli.completion import complete_topics
from oncelog.cli.connection import Connection, client_options, explained, require_partitions
from oncelog.cli.output import count_of
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import Admin
    from oncelog.client.consumer import Consumer
    from oncelog.client.fetcher import FetchedChunk

POLL_MS: Final = 200
HINT_AFTER_S: Final = 5.0
"""How long a follower that gets nothing waits before it looks whether a transaction holds it back."""
FETCH_BYTES: Final = 4 * 1024 * 1024

Offsets = dict[TopicPartition, int]


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...", shell_complete=complete_topics)
@click.option("--from", "start", metavar="earliest|latest|OFFSET|TIME|-N",
              help="Where to begin: an end, an offset, a time such as 2026-01-31T12:00 or -10m, or the last N records "
                   "of each partition.  [default: earliest; with --group where the group is]")  # fmt: skip
@click.option("--to", "stop", metavar="latest|OFFSET|TIME",
              help="Where to end, not included.  [default: where the topic ends now]")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option("-n", "--count", type=click.IntRange(min=0), metavar="N", help="End after so many records.")
@click.option("-g", "--group", metavar="GROUP", help="Read as a member of this group, and commit what was printed.")
@click.option("--isolation", type=click.Choice(["committed", "uncommitted"]), default="committed", show_default=True,
              help="Only what is committed, or also what open and aborted transactions have written.")  # fmt: skip
@click.option("-F", "--format", "style", default="value", show_default=True, metavar="value|key-value|full|TEMPLATE",
              help="A template has fields in braces: {topic} {partition} {offset} {timestamp} {time} {key} {value} "
                   r"{headers}; \t and \n are understood.")  # fmt: skip
@click.option("-D", "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="What follows each record.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="json: every line is an object, which 'oncelog produce -F json' takes.")  # fmt: skip
@client_options
def consume_command(
    connection: Connection,
    topics: tuple[str, ...],
    start: str | None,
    stop: str | None,
    follow: bool,
    count: int | None,
    group: str | None,
    isolation: str,
    style: str,
    delimiter: str,
    output: str,
) -> None:
    """Print the records of TOPICs.

    \b
    oncelog consume orders --from -10 -F '{key} {value}'
    oncelog consume orders --follow -o json | jq .value
    oncelog consume orders --group billing --count 100

    Without --follow it ends where the topics end when it starts. Ends with 0, also after Ctrl-C with --follow.
    """
    if follow and stop is not None:
        raise click.UsageError("--follow has no end: leave out --to")
    if group is not None and (start is not None or stop is not None):
        raise click.UsageError("a group begins where it is: see 'oncelog group reset-offsets', or leave out --group")
    printer = Printer(style, _delimiter(delimiter), output, count)
    with explained():
        with connection.admin() as admin:
            reading = _plan(admin, topics, start, stop, isolation)
        try:
            if group is not None:
                _read_as_group(connection, reading, printer, group, follow)
            elif follow:
                _follow(connection, reading, printer)
            else:
                _read_ranges(connection, reading, printer)
                _hint_at_open(reading)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            printer.flush()


def _delimiter(text: str) -> bytes:
    return text.encode().decode("unicode_escape").encode("latin-1")


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be read: per partition from where, and up to where it goes at present."""

    starts: Offsets
    stops: Offsets
    watermarks: Offsets
    """High watermarks: above `stops` only where a transaction is open."""
    isolation: str
    at_end: bool

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.starts})


def _plan(admin: Admin, topics: tuple[str, ...], start: str | None, stop: str | None, isolation: str) -> Reading:
    from oncelog.client.admin import OffsetSpec
    from oncelog.client.visibility import IsolationLevel

    partitions = require_partitions(admin, topics)
    level = IsolationLevel.READ_COMMITTED if isolation == "committed" else IsolationLevel.READ_UNCOMMITTED
    latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
    begins = _offsets(admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)))
    ends = _offsets(admin.list_offsets(latest, isolation=level))
    watermarks = _offsets(admin.list_offsets(latest))
    starts = _resolve(admin, start or "earliest", begins, ends)
    stops = ends if stop is None else _resolve(admin, stop, begins, ends)
    return Reading(starts, stops, watermarks, isolation, stop in (None, "latest"))


def _offsets(found: dict[TopicPartition, Any]) -> Offsets:
    return {partition: result.offset for partition, result in found.items()}


def _resolve(admin: Admin, text: str, begins: Offsets, ends: Offsets) -> Offsets:
    """Offsets for a place in words, within what is there."""
    if text == "earliest":
        return dict(begins)
    if text == "latest":
        return dict(ends)
    if text.isdigit() and len(text) <= 12:
        wanted = dict.fromkeys(begins, int(text))
    elif text.startswith("-") and text[1:].isdigit():
        wanted = {partition: end - int(text[1:]) for partition, end in ends.items()}
    else:
        moment = parsing.time_ms(text, int(time.time() * 1000))
        found = admin.list_offsets(dict.fromkeys(begins, moment))
        wanted = {p: found[p].offset if found[p].offset >= 0 else ends[p] for p in begins}
    return {p: min(max(offset, begins[p]), max(ends[p], begins[p])) for p, offset in wanted.items()}


class Printer:
    """Writes records to the standard output, up to a number of them."""

    def __init__(self, style: str, delimiter: bytes, output: str, count: int | None) -> None:
        text = record_output.template(style)
        self._format: record_output.Format = (
            record_output.json_format if output == "json" else record_output.text_format(text, delimiter)
        )
        self._delimiter = delimiter
        # These two are common, and can be written column by column.
        self._columns = {"{value}": ["value"], "{key}\t{value}": ["key", "value"]}.get(text)
        if output == "json" or importlib.util.find_spec("pyarrow") is None:
            self._columns = None
        self._left = count
        self.records = 0

    @property
    def is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def write_chunk(self, chunk: FetchedChunk) -> None:
        if self._columns is not None and self._left is None:
            self._write_columns(chunk)
            return
        from oncelog.client.consumer_records import iter_records

        self.write_records(iter_records(chunk))

    def write_records(self, records: Iterable[Any]) -> int:
        """Returns how many were written."""
        if self._left is not None:
            records = islice(records, max(self._left, 0))
        lines = list(map(self._format, records))
        sys.stdout.buffer.write(b"".join(lines))
        self.records += len(lines)
        if self._left is not None:
            self._left -= len(lines)
        return len(lines)

    def _write_columns(self, chunk: FetchedChunk) -> None:
        from oncelog.cli.record_columns import joined
        from oncelog.client.columns import to_arrow

        table = to_arrow([chunk], headers=False)
        if not table.num_rows or self._columns is None:
            return
        separators = [b"\t"] * (len(self._columns) - 1) + [self._delimiter]
        sys.stdout.buffer.write(joined([table.column(name) for name in self._columns], separators))
        self.records += table.num_rows

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def _read_ranges(connection: Connection, reading: Reading, printer: Printer) -> None:
    """One partition after the other, each up to its stop."""
    from oncelog.client.fetcher import RangeReader
    from oncelog.client.visibility import IsolationLevel

    level = IsolationLevel.READ_COMMITTED if reading.isolation == "committed" else IsolationLevel.READ_UNCOMMITTED
    config = connection.client_config()
    with RangeReader(config, isolation=level, fetch_bytes=FETCH_BYTES, idle_timeout_ms=connection.timeout_ms) as reader:
        for partition, start in reading.starts.items():
            for chunk in reader.read(*partition, start, reading.stops[partition]):
                printer.write_chunk(chunk)
                if printer.is_done:
                    return


def _hint_at_open(reading: Reading) -> None:
    """What committed readers were not given because a transaction is open."""
    if reading.isolation != "committed" or not reading.at_end:
        return
    for partition, stop in reading.stops.items():
        behind = reading.watermarks[partition] - stop
        if behind > 0:
            click.echo(_blocked(partition, stop, behind), err=True)


def _blocked(partition: TopicPartition, stop: int, behind: int) -> str:
    return (
        f"{partition}: an open transaction holds back {count_of(behind, 'offset')} from {stop} on; "
        f"'oncelog txn blocking {partition.topic}:{partition.partition}' says whose it is"
    )


def _consumer(connection: Connection, isolation: str, group: str | None) -> Consumer:
    from oncelog.client.consumer import Consumer
    from oncelog.client.consumer_config import CONSUMER_TABLE

    properties = connection.properties(
        [key.name for key in CONSUMER_TABLE],
        allow_auto_create_topics=False,
        group_id=group,
        isolation_level=f"read_{isolation}",
        auto_offset_reset="earliest",
        enable_auto_commit=False if group is not None else None,
        max_poll_records=10_000,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    return Consumer(properties)


def _follow(connection: Connection, reading: Reading, printer: Printer) -> None:
    with _consumer(connection, reading.isolation, None) as consumer:
        consumer.assign(reading.starts)
        for partition, offset in reading.starts.items():
            consumer.seek(partition, offset)
        watcher = _StuckWatcher(connection, reading)
        while not printer.is_done:
            if printer.write_records(consumer.poll(POLL_MS)):
                printer.flush()
                watcher.progressed()
            else:
                watcher.idle()


def _read_as_group(connection: Connection, reading: Reading, printer: Printer, group: str, follow: bool) -> None:
    """What was printed is committed, in this order: nothing is lost, and after a crash some is printed again."""
    with _consumer(connection, reading.isolation, group) as consumer:
        consumer.subscribe(reading.topics)
        for records in _polls(consumer, reading, follow):
            taken = records[: printer.write_records(records)]
            printer.flush()
            if taken:
                consumer.commit(_next_offsets(taken))
            if printer.is_done:
                return
        # Behind the last record there may be markers and aborted records, which are read as well.
        consumer.commit()


def _next_offsets(records: list[Any]) -> Offsets:
    return {record.topic_partition: record.offset + 1 for record in records}


def _polls(consumer: Consumer, reading: Reading, follow: bool) -> Iterator[list[Any]]:
    """Until the partitions that are ours are read up to where they ended at the start."""
    while True:
        records = consumer.poll(POLL_MS)
        yield records
        if follow or records:
            continue
        ours = consumer.assignment()
        if ours and all(consumer.position(p) >= reading.stops.get(p, 0) for p in ours):
            return


class _StuckWatcher:
    """Looks, once a follower has waited for a while, whether an open transaction is what it waits for."""

    def __init__(self, connection: Connection, reading: Reading) -> None:
        self._connection = connection
        self._reading = reading
        self._since_s = time.monotonic()
        self._told: set[tuple[TopicPartition, int]] = set()

    def progressed(self) -> None:
        self._since_s = time.monotonic()

    def idle(self) -> None:
        if self._reading.isolation != "committed" or time.monotonic() - self._since_s < HINT_AFTER_S:
            return
        self._since_s = time.monotonic()
        for partition, stop, behind in self._held_back():
            if (partition, stop) not in self._told:
                self._told.add((partition, stop))
                click.echo(_blocked(partition, stop, behind), err=True)

    def _held_back(self) -> Iterator[tuple[TopicPartition, int, int]]:
        from oncelog.client.admin import OffsetSpec
        from oncelog.client.visibility import IsolationLevel

        latest = dict.fromkeys(self._reading.starts, OffsetSpec.LATEST)
        with self._connection.admin() as admin:
            stable = _offsets(admin.list_offsets(latest, isolation=IsolationLevel.READ_COMMITTED))
            ends = _offsets(admin.list_offsets(latest))
        for partition, stop in stable.items():
            if ends[partition] > stop:
                yield partition, stop, ends[partition] - stop
