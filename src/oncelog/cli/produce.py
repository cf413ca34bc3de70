"""`oncelog produce`: lines from a pipe or from files become records, in transactions if asked to."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from oncelog.cli.completion import complete_topics
from oncelog.cli.connection import Connection, client_options, explain, explained, require_topics, split_assignment
from oncelog.cli.output import count_of
from oncelog.cli.record_input import Block, InvalidLine, LineFormat, blocks, file_blocks

if TYPE_CHECKING:
    from oncelog.client.producer import Producer

COLUMNS_BYTES_MIN: Final = 64 * 1024
"""Blocks from this size on go through Arrow; below, its import would cost more than it gains."""
COLUMNS_BYTES_LATER: Final = 4 * 1024
"""Once it is imported, it pays sooner."""
UNCHECKED_MAX: Final = 10_000
"""Deliveries that are waited for at most, so that a failure is noticed while the input still runs."""
MARKERS_WAIT_S: Final = 5.0
EXIT_INTERRUPTED: Final = 130


@click.command("produce")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@click.option("-F", "--format", "style", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
              help="lines: every line is a value. json: every line is an object with key, value, headers, partition, "
                   "timestamp, as 'oncelog consume -o json' writes them.")  # fmt: skip
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Every line is a key, this text, and a value.")
@click.option("--null", "null_text", metavar="TEXT", help="A key or value that equals this text is null: a tombstone.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition, whatever the keys are.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True, help="How batches are compressed.")  # fmt: skip
@click.option("--transactional-id", metavar="ID", help="Write in a transaction: all of the input or nothing.")
@click.option("--transaction-size", type=click.IntRange(min=1), metavar="N",
              help="Commit after so many records, instead of once at the end.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no summary.")
@client_options
def produce_command(
    connection: Connection,
    topic: str,
    files: tuple[Path, ...],
    style: str,
    key_delimiter: str | None,
    null_text: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    transactional_id: str | None,
    transaction_size: int | None,
    quiet: bool,
) -> None:
    """Write the lines of FILEs, or of the standard input, to TOPIC.

    \b
    echo hello | oncelog produce greetings
    oncelog produce orders -K: orders.txt
    oncelog produce orders -F json --transactional-id nightly-import orders.jsonl

    Ends with 0 when every record is acknowledged. Ctrl-C in a transaction aborts it.
    """
    if transaction_size is not None and transactional_id is None:
        raise click.UsageError("--transaction-size needs --transactional-id")
    if style == "json" and (key_delimiter is not None or null_text is not None):
        raise click.UsageError("--key-delimiter and --null are for lines: with --format json the object says it all")
    line_format = LineFormat(
        is_json=style == "json",
        key_delimiter=_unescaped(key_delimiter),
        null_text=_unescaped(null_text),
        headers=tuple((name, value.encode()) for name, value in (split_assignment(h, "--header") for h in headers)),
    )
    with explained():
        with connection.admin() as admin:
            info = require_topics(admin, [topic])[topic]
        if partition is not None and partition >= len(info.partitions):
            raise click.ClickException(f"topic {topic} has {len(info.partitions)} partitions, there is no {partition}")
        with _producer(connection, compression, transactional_id) as producer:
            writer = Writer(producer, topic, line_format, partition, transactional_id, transaction_size)
            _run(writer, files, quiet)
            if transactional_id is not None:
                _await_markers(connection, transactional_id)


def _unescaped(text: str | None) -> bytes | None:
    r"""`\t` on a command line is meant as a tabulator."""
    return None if text is None else text.encode().decode("unicode_escape").encode("latin-1")


def _producer(connection: Connection, compression: str, transactional_id: str | None) -> Producer:
    from oncelog.client.producer import Producer
    from oncelog.client.producer_config import PRODUCER_TABLE

    properties = connection.properties(
        [key.name for key in PRODUCER_TABLE],
        allow_auto_create_topics=False,
        compression_type=compression,
        transactional_id=transactional_id,
        batch_size=262_144,
        linger_ms=5,
        max_block_ms=max(connection.timeout_ms, 60_000),
    )
    return Producer(properties)


def _run(writer: Writer, files: tuple[Path, ...], quiet: bool) -> None:
    started_s = time.monotonic()
    with _progress(files, quiet) as advance:
        try:
            writer.begin()
            for block in _input(files):
                writer.write(block)
                advance(len(block.data))
            writer.finish()
        except InvalidLine as problem:
            _fail(writer, str(problem))
        except KeyboardInterrupt:
            _fail(writer, "interrupted", EXIT_INTERRUPTED)
        except Exception as error:
            from oncelog.core.errors import KafkaError

            if not isinstance(error, KafkaError | OSError | RuntimeError):
                raise
            _fail(writer, explain(error) if isinstance(error, KafkaError) else str(error))
    if not quiet:
        seconds = max(time.monotonic() - started_s, 1e-6)
        rate = f"{writer.records / seconds:,.0f}/s"
        click.echo(f"{count_of(writer.records, 'record')} to {writer.topic} in {seconds:.1f} s ({rate})", err=True)


def _await_markers(connection: Connection, transactional_id: str) -> None:
    """A commit is final once it is decided, and visible once its markers are written: a moment later.

    A reader that is started next should find everything, so that moment is waited for, though not for ever.
    """
    from oncelog.core.errors import KafkaError

    deadline_s = time.monotonic() + MARKERS_WAIT_S
    with contextlib.suppress(KafkaError, click.ClickException), connection.admin() as admin:
        while time.monotonic() < deadline_s:
            state = admin.describe_transactions([transactional_id])[transactional_id].state
            if not state.startswith("Prepare"):
                return
            time.sleep(0.01)


def _fail(writer: Writer, problem: str, exit_code: int = 1) -> NoReturn:
    """End what is open and say what became of the lines so far."""
    outcome = writer.give_up()
    click.echo(f"Error: {problem}\n{outcome}", err=True)
    raise SystemExit(exit_code)


def _input(files: tuple[Path, ...]) -> Iterator[Block]:
    if not files:
        yield from blocks(sys.stdin.fileno(), "")
    for path in files:
        yield from file_blocks(path)


@contextlib.contextmanager
def _progress(files: tuple[Path, ...], quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal while files are read; nothing in pipes."""
    if quiet or not files or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(path.stat().st_size for path in files))
        yield lambda size: progress.update(task, advance=size)


class Writer:
    """Sends the lines of blocks, and ends transactions when their size is reached."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        line_format: LineFormat,
        partition: int | None,
        transactional_id: str | None,
        transaction_size: int | None,
    ) -> None:
        self._producer = producer
        self.topic = topic
        self._format = line_format
        self._partition = partition
        self._transactional_id = transactional_id
        self._size = transaction_size
        self._in_transaction = False
        self._unchecked: deque[Any] = deque()
        self._columns_work = not line_format.is_json and importlib.util.find_spec("pyarrow") is not None
        self._columns_bytes_min = COLUMNS_BYTES_MIN
        self.records = 0
        self.committed = 0
        """Records of transactions that are committed."""
        self.transactions = 0

    def begin(self) -> None:
        if self._transactional_id is not None:
            if self.transactions == 0 and not self._in_transaction:
                self._producer.init_transactions()
            self._producer.begin_transaction()
            self._in_transaction = True

    def write(self, block: Block) -> None:
        if self._columns_work and not self._format.headers and len(block.data) >= self._columns_bytes_min:
            self._columns_bytes_min = COLUMNS_BYTES_LATER
            self._write_columns(block)
        else:
            self._write_lines(block)
        self._check_deliveries(UNCHECKED_MAX)

    def _write_lines(self, block: Block) -> None:
        lines = block.data.split(b"\n")
        lines.pop()
        send = self._producer.send
        for number, line in enumerate(lines, start=block.first_line):
            if self._format.is_json and not line.strip():
                continue
            record = self._format.parse(line, number, block.source)
            future = send(
                self.topic,
                record.value,
                record.key,
                partition=record.partition if self._partition is None else self._partition,
                headers=record.headers or None,
                timestamp_ms=record.timestamp_ms,
            )
            self._unchecked.append(future)
            self._counted(1)

    def _write_columns(self, block: Block) -> None:
        from oncelog.cli.record_columns import rows_of

        keys, values = rows_of(block, self._format)
        start = 0
        while start < len(values):
            count = min(len(values) - start, self._room())
            futures = self._producer.send_columns(
                self.topic,
                values.slice(start, count),
                key=None if keys is None else keys.slice(start, count),
                partition=self._partition,
            )
            self._unchecked.extend(futures)
            self._counted(count)
            start += count

    def _room(self) -> int:
        """How many records the transaction still takes."""
        return sys.maxsize if self._size is None else self._size - (self.records - self.committed)

    def _counted(self, count: int) -> None:
        self.records += count
        if self._size is not None and self.records - self.committed >= self._size:
            self._commit()
            self.begin()

    def _commit(self) -> None:
        self._producer.commit_transaction()
        self._in_transaction = False
        self._unchecked.clear()
        self.committed = self.records
        self.transactions += 1

    def _check_deliveries(self, leave: int) -> None:
        """Raises what went wrong with the oldest deliveries, and waits for all but `leave` of them."""
        while self._unchecked and (len(self._unchecked) > leave or self._unchecked[0].done()):
            self._unchecked.popleft().result()

    def finish(self) -> None:
        """Everything is acknowledged, and committed, when this returns."""
        if self._in_transaction:
            self._commit()
        else:
            self._producer.flush()
            self._check_deliveries(0)

    def give_up(self) -> str:
        """Abort what is open, deliver what is not in a transaction, and tell what was written."""
        if self._transactional_id is None:
            return self._deliver_rest()
        aborted = self.records - self.committed
        if self._in_transaction:
            with contextlib.suppress(Exception):
                self._producer.abort_transaction()
        done = (
            f"{count_of(self.committed, 'record')} were committed before it"
            if self.committed
            else "nothing was written"
        )
        return f"The transaction of {count_of(aborted, 'record')} is aborted; {done}."

    def _deliver_rest(self) -> str:
        written = self.records
        try:
            self._producer.flush()
            self._check_deliveries(0)
        except Exception as error:  # noqa: BLE001  # whatever it is, the first problem is the one to report
            return f"Of {count_of(written, 'record')} read, some were not written: {error}"
        return f"{count_of(written, 'record')} read before it are written." if written else "Nothing was written."
