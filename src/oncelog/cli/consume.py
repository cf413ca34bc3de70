"""`oncelog consume`: records to the standard output, up to the end of the topic or for ever."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import ClusterAccess, client_options, require_partitions
from oncelog.cli.completion import complete_topics
from oncelog.cli.content_types import content_type_options
from oncelog.cli.parsing import Choice, IntRange
from oncelog.cli.record_printer import Printer
from oncelog.cli.schema_types import SchemaTypes, registry_option
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.cli.reading import Reading
    from oncelog.client.admin import Admin
    from oncelog.client.consumer import Consumer
    from oncelog.client.consumer_config import ConsumerConfig

FETCH_BYTES: Final = 4 * 1024 * 1024
_OPTIONS_OF: Final = {"group.id": "--group", "enable.auto.commit": "--group, which commits what was printed"}
"""Settings that have an option of their own."""


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...", shell_complete=complete_topics)
@click.option("--from", "start", metavar="earliest|latest|OFFSET|TIME|-N",
              help="Where to begin: an end, an offset, a time such as 2026-01-31T12:00 or -10m, or the last N records "
                   "of each partition.  [default: earliest; with --group where the group is]")  # fmt: skip
@click.option("--to", "stop", metavar="latest|OFFSET|TIME",
              help="Where to end, not included.  [default: where the topic ends now]")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@click.option("-n", "--count", type=IntRange(min=0), metavar="N", help="Stop after this number of records.")
@click.option("-g", "--group", metavar="GROUP",
              help="Read as a member of this group, and commit what was printed. Partitions that are named are read "
                   "alone, without joining it.")  # fmt: skip
@click.option("--isolation", type=Choice(["committed", "uncommitted"]),
              help="Only committed records, or also records of open and aborted transactions.  "
                   "[default: committed, unless isolation.level is set]")  # fmt: skip
@click.option("--skip-corrupt-batches", is_flag=True,
              help="Leave out records that cannot be read, with a warning that names topic, partition and offsets, "
                   "instead of stopping at them.")  # fmt: skip
@click.option("-F", "--format", "style", default="value", show_default=True,
              metavar="value|key-value|full|json|TEMPLATE",
              help="A template has fields in braces: {topic} {partition} {offset} {timestamp} {time} {key} {value} "
                   r"{headers}; \t and \n are understood.")  # fmt: skip
@click.option("-D", "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="The text after each record.")
@content_type_options
@registry_option
@click.option("-o", "--output", type=Choice(["text", "json"]), default="text", show_default=True,
              help="json, or -F json: every line is an object, which 'oncelog produce -F json' takes.")  # fmt: skip
@client_options
def consume_command(
    access: ClusterAccess,
    topics: tuple[str, ...],
    start: str | None,
    stop: str | None,
    follow: bool,
    count: int | None,
    group: str | None,
    isolation: str | None,
    skip_corrupt_batches: bool,
    style: str,
    delimiter: str,
    key_type: str,
    value_type: str,
    schema_registry: str | None,
    output: str,
) -> None:
    """Print the records of TOPICs.

    \b
    oncelog consume orders --from -10 -F '{key} {value}'
    oncelog consume orders --follow -o json | jq .value
    oncelog consume orders --group billing --count 100
    oncelog consume 'orders-*' payments:0 -F full --key-type long
    oncelog consume orders --schema-registry http://127.0.0.1:8081

    A name may be a pattern with *, ? or [...], which stands for the topics that match when the command starts.
    Without --follow it stops where the topics end when it starts. With --follow it waits for brokers that restart, and
    the exit code after Ctrl-C is 0.
    """
    from oncelog.cli.reading import Planner

    if follow and stop is not None:
        raise click.UsageError("--follow has no end: leave out --to")
    if group is not None and (start is not None or stop is not None):
        raise click.UsageError(
            f"a group begins where it is: move it by '{_reset(access, group, topics, start)}', or leave out --group"
        )
    types = SchemaTypes(schema_registry, key_type, value_type).for_reading()
    printer = Printer(style, parsing.unescaped(delimiter, "--delimiter"), output, count, types)
    if style == "json":
        progress.turn_off()
    with access.explained():
        config = _config(access, isolation, group, skip_corrupt_batches)
        with access.admin() as admin:
            partitions = require_partitions(admin, topics)
            by_hand = any(parsing.topic_and_partitions(topic)[1] is not None for topic in topics)
            if group is not None and by_hand:
                _require_no_members(access, admin, group)
            reading = Planner(access, admin, config).plan(partitions, start, stop)
        try:
            if group is not None:
                _read_as_group(access, config, reading, printer, by_hand=by_hand, follow=follow)
            elif follow:
                _follow(access, config, reading, printer)
            else:
                _read_ranges(access, config, reading, printer)
            if not follow and not printer.is_done:
                reading.hint(access)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            printer.flush()


def _reset(access: ClusterAccess, group: str, topics: tuple[str, ...], start: str | None) -> str:
    """The command that moves the group there. `-N` is another place there than here."""
    from oncelog.monitoring.positions import PositionKind

    known = start is not None and parsing.position(start, parsing.now_ms()).kind is not PositionKind.RELATIVE
    names = [f"--topic={topic}" for topic in topics]
    return access.command("group", "reset-offsets", group, *names, f"--to={start if known else 'earliest'}")


def _config(
    access: ClusterAccess, isolation: str | None, group: str | None, skip_corrupt_batches: bool
) -> ConsumerConfig:
    """The settings of the consumer; readers of ranges use them too."""
    from oncelog.client.consumer_config import CONSUMER_TABLE, ConsumerConfig

    access.check_settings(_OPTIONS_OF if group is not None else {**_OPTIONS_OF, "auto.offset.reset": "--from"})
    properties = access.properties(
        CONSUMER_TABLE,
        allow_auto_create_topics=False,
        auto_offset_reset="earliest",
        max_poll_records=10_000,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    if isolation is not None:
        wanted = f"read_{isolation}"
        if access.settings.get("isolation.level", wanted) != wanted:
            raise click.UsageError("--isolation and --set isolation.level contradict each other")
        properties["isolation.level"] = wanted
    properties.setdefault("isolation.level", "read_committed")
    for name in ("group.id", "enable.auto.commit", *(() if group is not None else ("group.instance.id",))):
        # Group settings in a file are for other programs; here --group decides.
        properties.pop(name, None)
    if group is not None:
        properties |= {"group.id": group, "enable.auto.commit": False}
    if skip_corrupt_batches:
        properties["oncelog.skip.corrupt.batches"] = True
    return ConsumerConfig.parse(properties)


def _require_no_members(access: ClusterAccess, admin: Admin, group: str) -> None:
    if admin.describe_groups([group])[group].members:
        described = access.command("group", "describe", group)
        raise click.ClickException(
            f"group {group} has members, which share the partitions among themselves ('{described}'): name topics "
            "without partitions to join them, or stop them"
        )


def _read_ranges(access: ClusterAccess, config: ConsumerConfig, reading: Reading, printer: Printer) -> None:
    """One partition after the other, each up to its stop."""
    from oncelog.cli.reading import range_reader

    starts = list(reading.starts.items())
    with range_reader(access, config) as reader:
        named = progress.each(starts, lambda item: f"reading {item[0]}", unless=sys.stdout.isatty())
        for partition, start in named:
            for chunk in reader.read(*partition, start, reading.stops[partition]):
                printer.write_chunk(chunk)
                if printer.is_done:
                    return


def _follow(access: ClusterAccess, config: ConsumerConfig, reading: Reading, printer: Printer) -> None:
    from oncelog.cli.following import IdleWatcher, Outage, poll_for_ever
    from oncelog.client.consumer import Consumer

    if printer.is_done:
        return
    with Consumer(config) as consumer:
        consumer.assign(reading.starts)
        for partition, offset in reading.starts.items():
            consumer.seek(partition, offset)
        outage = Outage()
        watcher = IdleWatcher(access, consumer, outage)
        for records in poll_for_ever(consumer, outage):
            if printer.write_records(records):
                printer.flush()
                watcher.progressed()
            else:
                watcher.idle()
            if printer.is_done:
                return


def _read_as_group(
    access: ClusterAccess, config: ConsumerConfig, reading: Reading, printer: Printer, *, by_hand: bool, follow: bool
) -> None:
    """Prints records and then commits them: after a crash nothing is lost, but some records may be printed again."""
    from oncelog.cli.following import Committer, IdleWatcher, Outage, poll_for_ever
    from oncelog.client.consumer import Consumer

    with Consumer(config) as consumer:
        if by_hand:
            consumer.assign(reading.starts)
        else:
            consumer.subscribe(reading.topics)
        outage = Outage()
        committer = Committer(consumer, outage)
        watcher = IdleWatcher(access, consumer, outage)
        polls = poll_for_ever(consumer, outage) if follow else _shown(_polls(consumer, reading), config, printer)
        with closing(polls):
            for records in polls:
                taken = records[: printer.write_records(records)]
                printer.flush()
                if taken:
                    watcher.progressed()
                else:
                    watcher.idle()
                offsets = _next_offsets(taken)
                if follow and not records:
                    committer.commit_positions()
                elif follow:
                    committer.commit(offsets)
                elif offsets:
                    consumer.commit(offsets)
                if printer.is_done:
                    return
        # Behind the last record there may be markers and aborted records, which are read as well.
        consumer.commit()


def _shown(polls: Iterator[list[Any]], config: ConsumerConfig, printer: Printer) -> Generator[list[Any], None, None]:
    """The same, with what is waited for on the terminal until it gets records."""
    with progress.doing(lambda: f"reading as a member of {config.group_id}, {printer.records} records") as line:
        for records in polls:
            if records and sys.stdout.isatty():
                line.end()
            with line.hidden():
                yield records


def _next_offsets(records: list[Any]) -> dict[TopicPartition, int]:
    return {record.topic_partition: record.offset + 1 for record in records}


def _polls(consumer: Consumer, reading: Reading) -> Iterator[list[Any]]:
    """Polls until the assigned partitions are read up to where they ended at the start."""
    from oncelog.cli.following import POLL_MS

    while True:
        records = consumer.poll(POLL_MS)
        yield records
        if records:
            continue
        ours = consumer.assignment()
        if ours and all(consumer.position(p) >= reading.stops.get(p, 0) for p in ours):
            return
