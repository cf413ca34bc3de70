"""`oncelog log`: data folders read offline, without a broker; and what brokers say of theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.output import count_of, json_line, output_option, print_json, print_table, show_bytes, show_time
from oncelog.cli.parsing import Choice, IntRange

if TYPE_CHECKING:
    from oncelog.core.errors import KafkaError
    from oncelog.inspection.batch_file import InspectedBatch
    from oncelog.inspection.layout import StoredFile
    from oncelog.inspection.search import Found
    from oncelog.inspection.selection import Selection
    from oncelog.inspection.transactional_ids import TransactionalIds
    from oncelog.inspection.verification import Report

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.argument("path", type=parsing.NewPath(path_type=Path))


@click.group("log")
def log_command() -> None:
    """Inspect data folders offline, without a broker; `dirs` asks brokers. Nothing is changed.

    PATH is a file, the folder of a partition (orders-0) or a whole data folder. Folders of Apache Kafka work as well.
    """


@log_command.command("dirs")
@click.option("--partitions", "in_detail", is_flag=True, help="The size of every partition.")
@output_option
@cluster_options
def dirs_command(access: ClusterAccess, in_detail: bool, output: str) -> None:
    """Show the data folders of all brokers: what is stored in them, and how much room is left."""
    with access.admin() as admin:
        directories = admin.describe_log_dirs()
    rows: list[dict[str, Any]] = [
        {
            "broker": one.broker_id,
            "folder": one.path,
            "partitions": {str(partition): size for partition, size in sorted(one.partition_bytes.items())},
            "bytes": sum(one.partition_bytes.values()),
            "usable_bytes": one.usable_bytes if one.usable_bytes >= 0 else None,
            "total_bytes": one.total_bytes if one.total_bytes >= 0 else None,
        }
        for one in directories
    ]
    if output == "json":
        print_json(rows)
        return
    print_table(
        ["broker", "folder", "partitions", "stored", "free", "of"],
        [[row["broker"], row["folder"], len(row["partitions"]), *_sizes(row)] for row in rows],
    )
    if in_detail:
        sizes = [(row["broker"], name, size) for row in rows for name, size in row["partitions"].items()]
        print_table(["broker", "partition", "stored"], [[b, name, show_bytes(size)] for b, name, size in sizes])


def _sizes(row: dict[str, Any]) -> list[str | None]:
    sizes = (row["bytes"], row["usable_bytes"], row["total_bytes"])
    return [None if size is None else show_bytes(size) for size in sizes]


def _selection_options(command: F) -> F:
    for option in reversed([
        click.option("--producer", "producers", type=int, multiple=True, metavar="ID", help="Of this producer id."),
        click.option("--transactional-id", metavar="ID", help="Of this transactional id."),
        click.option("--offsets", metavar="A..B", help="Within these offsets; either end may be left out."),
        click.option("--times", metavar="A..B", help="Within these times, such as 2026-01-31T12:00..  or  -10m.. ."),
    ]):  # fmt: skip
        command = option(command)
    return command


@log_command.command("dump")
@_PATH
@_selection_options
@click.option("--records/--no-records", default=True, help="Records, or only the headers of batches.")
@click.option("--format", "style", type=Choice(["oncelog", "kafka"]), default="oncelog", show_default=True,
              help="kafka: the lines of Apache Kafka's DumpLogSegments.")  # fmt: skip
@output_option
def dump_command(
    path: Path,
    producers: tuple[int, ...],
    transactional_id: str | None,
    offsets: str | None,
    times: str | None,
    records: bool,
    style: str,
    output: str,
) -> None:
    """Print what is in the files: batches and records, indexes, snapshots, checkpoints.

    Records of internal topics are decoded. With --output json every line is an object.
    """
    from oncelog.inspection.layout import files_of

    with _explained():
        if style == "kafka":
            if producers or transactional_id or offsets or times or output == "json":
                raise click.UsageError(
                    "--format kafka prints whole files as lines: leave out options that select batches, and json"
                )
            _dump_like_kafka(path, records)
            return
        ids = _ids(path)
        selection = _selection(ids, producers, transactional_id, offsets, times)
        write = sys.stdout.write
        for file in _named(files_of(path)):
            for line in _dump_lines(path, file, selection, records, ids, output):
                write(line + "\n")


def _named(files: Sequence[Any]) -> Iterator[Any]:
    """The files, with the name of the one that is read. A terminal that gets the dump itself needs no other sign."""
    return progress.each(files, lambda file: f"reading {file.path}", unless=sys.stdout.isatty())


def _dump_lines(
    path: Path, file: Any, selection: Selection, records: bool, ids: TransactionalIds, output: str
) -> Iterator[str]:
    from oncelog.cli import log_text
    from oncelog.inspection import describe
    from oncelog.inspection.entries import Unreadable

    is_titled = False
    try:
        for row in describe.rows(file, selection, with_records=records, names=ids.names):
            if output == "json":
                yield json_line({"file": log_text.shown_path(file.path, path), **row})
                continue
            if not is_titled:
                yield log_text.title(file, path)
                is_titled = True
            yield from log_text.lines(row)
    except Unreadable as error:
        click.echo(f"oncelog: {file.path}: {error}", err=True)
    if not is_titled and output == "text" and selection.is_everything:
        yield log_text.title(file, path) + "  empty"


def _dump_like_kafka(path: Path, records: bool) -> None:
    from oncelog.inspection.kafka_dump import DUMPED_KINDS, KafkaDump
    from oncelog.inspection.layout import files_of

    dump = KafkaDump(deep=records)
    write = sys.stdout.write
    for file in _named(files_of(path)):
        if path.is_file() or (file.kind in DUMPED_KINDS and not file.second_suffix):
            for line in dump.lines(file):
                write(line + "\n")
    for remark in dump.remarks:
        click.echo(remark, err=True)


@log_command.command("verify")
@_PATH
@click.option("--headers-only", is_flag=True, help="Do not decode the records.")
@click.option("--notes/--no-notes", default=True, show_default=True, help="Show remarks that are no damage.")
@output_option
def verify_command(path: Path, headers_only: bool, notes: bool, output: str) -> None:
    """Check all invariants between the files, and say what a broker would do about each problem when it starts.

    The exit code is 0 if everything is in order, and 1 otherwise.
    """
    from oncelog.inspection.verification import Report, Severity, verify_path

    report = Report()
    with _explained(), progress.doing(lambda: _verified_so_far(report)):
        verify_path(path, report, deep=not headers_only)
    shown = [found for found in report.findings if notes or found.severity is not Severity.NOTE]
    if output == "json":
        print_json({"clean": report.is_clean, **_totals(report), "findings": [found.as_row() for found in shown]})
    else:
        for found in shown:
            _print_finding(found.severity.value, found.as_row(), path)
        for (file, check), count in report.hidden.items():
            click.echo(f"... and {count} more of {check} in {file}")
        click.echo(_verdict(report))
    sys.exit(0 if report.is_clean else 1)


def _verified_so_far(report: Report) -> str:
    return f"checking {report.reading or 'the folder'}, {show_bytes(report.size_bytes)} read"


def _print_finding(severity: str, row: dict[str, Any], root: Path) -> None:
    from oncelog.cli.log_text import shown_path

    colour = {"error": "red", "warning": "yellow", "note": "cyan"}[severity]
    place = "".join(f" {name} {row[name]}" for name in ("offset", "position") if name in row)
    file = shown_path(Path(row["file"]), root)
    click.echo(f"{click.style(severity.upper(), fg=colour, bold=True)} {file}{place}  [{row['check']}]")
    click.echo(f"  {row['what']}")
    click.echo(f"  At start a broker {row['at_start']}.")


def _totals(report: Report) -> dict[str, int]:
    return {
        "partitions": report.partitions,
        "files": report.files,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.size_bytes,
    }


def _verdict(report: Report) -> str:
    from oncelog.inspection.verification import Severity

    looked_at = (
        f"{count_of(report.partitions, 'partition')}, {count_of(report.files, 'file')}, "
        f"{count_of(report.batches, 'batch')}, {count_of(report.records, 'record')}, {show_bytes(report.size_bytes)}"
    )
    if report.is_clean:
        return f"{click.style('OK', fg='green', bold=True)}: {looked_at}"
    errors, warnings = len(report.of(Severity.ERROR)), len(report.of(Severity.WARNING))
    return f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')}: {looked_at}"


@log_command.command("find")
@_PATH
@_selection_options
@click.option("--offset", type=IntRange(min=0), help="Where this offset is, and how a broker finds it.")
@click.option("--time", "moment", metavar="TIME", help="The first record that is not older.")
@click.option("--key", help="Records with this key.")
@click.option("--text", help="Records whose value contains this.")
@click.option(
    "--limit", type=IntRange(min=1), default=100, show_default=True, help="Stop after this number of results."
)
@output_option
def find_command(
    path: Path,
    producers: tuple[int, ...],
    transactional_id: str | None,
    offsets: str | None,
    times: str | None,
    offset: int | None,
    moment: str | None,
    key: str | None,
    text: str | None,
    limit: int,
    output: str,
) -> None:
    """Find an offset, a time, a key, a text, a producer or a transaction: file, byte position, batch, record.

    The exit code is 1 if nothing is found.
    """
    from dataclasses import replace

    from oncelog.inspection.layout import folders_of

    with _explained():
        ids = _ids(path)
        selection = _selection(ids, producers, transactional_id, offsets, times)
        selection = replace(
            selection,
            key=os.fsencode(key) if key is not None else None,
            text=os.fsencode(text) if text is not None else None,
        )
        if offset is None and moment is None and selection.is_everything:
            raise click.UsageError("say what to find: --offset, --time, --key, --text, --producer, --transactional-id")
        at_ms = parsing.time_ms(moment, parsing.now_ms()) if moment is not None else None
        found = 0
        for hit in _hits(path, folders_of(path), offset, at_ms, selection):
            with progress.hidden():
                _print_found(hit, path, ids, output)
            found += 1
            if found == limit:
                click.echo(f"stopped after {limit}; see --limit", err=True)
                break
    if not found:
        click.echo("nothing found", err=True)
        sys.exit(1)


def _hits(path: Path, folders: Any, offset: int | None, at_ms: int | None, selection: Selection) -> Iterator[Found]:
    from oncelog.cli.log_text import shown_path
    from oncelog.inspection import search

    def tell(file: StoredFile, batch: InspectedBatch, error: KafkaError) -> None:
        header = batch.header
        click.echo(
            f"oncelog: {shown_path(file.path, path)}: offsets {header.base_offset} to {header.last_offset} at byte "
            f"{batch.position} cannot be read, and were not searched: {error.message}",
            err=True,
        )

    for folder in progress.each(folders, lambda folder: f"searching {folder.path}"):
        if offset is not None:
            hit = search.find_offset(folder, offset, tell)
        elif at_ms is not None:
            hit = search.find_time(folder, at_ms, tell)
        else:
            yield from search.find_records(folder, selection, tell)
            continue
        if hit is not None:
            yield hit


def _print_found(hit: Found, root: Path, ids: TransactionalIds, output: str) -> None:
    from oncelog.cli import log_text
    from oncelog.inspection import describe
    from oncelog.inspection.internal_topics import decoder_for

    row = describe.batch_row(hit.batch, ids.names)
    if hit.record is not None:
        row["records"] = [describe.record_row(hit.record, decoder_for(hit.file.topic))]
    file = log_text.shown_path(hit.file.path, root)
    if output == "json":
        sys.stdout.write(json_line({"file": file, **row, "way": hit.way}) + "\n")
        return
    click.echo(file)
    for step in _way_lines(hit.way):
        click.echo(f"  {step}")
    for line in log_text.lines(row):
        click.echo(line)


def _way_lines(way: dict[str, Any]) -> Iterator[str]:
    if not way:
        return
    entry, time_entry = way.get("index_entry"), way.get("time_index_entry")
    if "index_problem" in way:
        yield way["index_problem"]
    if entry is not None:
        yield f"index: offset {entry['offset']} is at byte {entry['position']}"
    if time_entry is not None:
        newest = show_time(time_entry["timestamp"])
        yield f"time index: nothing up to offset {time_entry['offset']} is newer than {newest}"
    if "batches_scanned" in way:
        start = "there" if entry is not None else "the start of the segment"
        yield f"{count_of(way['batches_scanned'], 'batch')} read from {start}"


@log_command.command("timeline")
@_PATH
@click.option("--producer", "producers", type=int, multiple=True, metavar="ID", help="Of this producer id.")
@click.option("--transactional-id", metavar="ID", help="Of this transactional id.")
@click.option("--limit", type=IntRange(min=0), default=20, show_default=True,
              help="Number of last transactions to list; 0 for all.")  # fmt: skip
@output_option
def timeline_command(
    path: Path, producers: tuple[int, ...], transactional_id: str | None, limit: int, output: str
) -> None:
    """Draw the transactions of each partition over its offsets, with the last stable offset and what was aborted."""
    from oncelog.inspection.layout import folders_of
    from oncelog.inspection.transactions import read_history

    with _explained():
        ids = _ids(path)
        wanted = _producer_ids(ids, producers, transactional_id)
        folders = progress.each(folders_of(path), lambda folder: f"reading {folder.path}")
        histories = [read_history(folder, producer_ids=wanted) for folder in folders]
    if output == "json":
        print_json([_history_row(history, ids.names) for history in histories])
        return
    from rich.console import Console

    from oncelog.cli.timeline_view import draw

    console = Console()
    drawn = [history for history in histories if history.spans or len(histories) == 1]
    for history in drawn:
        draw(console, history, ids.names, limit=limit)
    if len(drawn) < len(histories):
        such = "such transactions" if wanted is not None else "transactions"
        click.echo(f"{count_of(len(histories) - len(drawn), 'partition')} without {such}", err=True)


def _history_row(history: Any, names: dict[int, str]) -> dict[str, Any]:
    spans = []
    for span in history.spans:
        row = {**asdict(span), "outcome": span.outcome.value}
        if span.producer_id in names:
            row["transactional_id"] = names[span.producer_id]
        spans.append(row)
    return {
        "topic": history.partition.topic,
        "partition": history.partition.partition,
        "start_offset": history.start_offset,
        "end_offset": history.end_offset,
        "last_stable_offset": history.last_stable_offset,
        "transactions": spans,
        "aborted": [entry._asdict() for entry in history.aborted],
    }


class _explained:  # noqa: N801  # used as a statement: with _explained()
    """A path that cannot be inspected is a mistake of the caller, not a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from oncelog.inspection.layout import NotInspectable

        if isinstance(error, NotInspectable):
            raise click.ClickException(str(error)) from error
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _ids(path: Path) -> TransactionalIds:
    """The transactional ids of the data folder that the path is in, if it has them."""
    from oncelog.inspection.layout import is_data_folder, partition_of
    from oncelog.inspection.transactional_ids import read_transactional_ids

    resolved = path.resolve()
    if path.is_dir() and is_data_folder(path):
        return read_transactional_ids(path)
    folder = resolved if resolved.is_dir() else resolved.parent
    return read_transactional_ids(folder.parent if partition_of(folder) is not None else folder)


def _producer_ids(
    ids: TransactionalIds, producers: tuple[int, ...], transactional_id: str | None
) -> frozenset[int] | None:
    if transactional_id is None:
        return frozenset(producers) if producers else None
    return frozenset(producers) | ids.producer_ids_of(transactional_id)


def _selection(
    ids: TransactionalIds,
    producers: tuple[int, ...],
    transactional_id: str | None,
    offsets: str | None,
    times: str | None,
) -> Selection:
    from oncelog.inspection.selection import EVERYTHING, Selection

    return Selection(
        producer_ids=_producer_ids(ids, producers, transactional_id),
        transactional_id=transactional_id,
        offsets=parsing.offset_range(offsets) if offsets is not None else EVERYTHING,
        times=parsing.time_range(times, parsing.now_ms()) if times is not None else EVERYTHING,
    )
