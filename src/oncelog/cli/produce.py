"""`oncelog produce`: lines from a pipe or from files become records, in transactions if asked to."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from oncelog.cli import interruption, parsing, progress, streams
from oncelog.cli.cluster_access import ClusterAccess, client_options, require_topics, split_assignment
from oncelog.cli.completion import complete_topics
from oncelog.cli.content_types import content_type_options
from oncelog.cli.output import count_of, show_bytes
from oncelog.cli.parsing import Choice, IntRange
from oncelog.cli.record_input import Block, InvalidLine, LineFormat, blocks, file_blocks
from oncelog.cli.schema_types import SchemaTypes, registry_option, schema_file_options
from oncelog.core.codec import PRODUCER_CODECS

if TYPE_CHECKING:
    from oncelog.cli.record_writer import RecordWriter
    from oncelog.client.producer import Producer

MARKERS_WAIT_MS: Final = 5_000


@click.command("produce")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@click.option("-F", "--format", "style", type=Choice(["lines", "json"]), default="lines", show_default=True,
              help="lines: every line is a value. json: every line is an object with key, value, headers, partition, "
                   "timestamp, as 'oncelog consume -o json' writes them.")  # fmt: skip
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Every line is a key, this text, and a value.")
@click.option("--null", "null_text", metavar="TEXT", help="A key or value that equals this text is null: a tombstone.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("-p", "--partition", type=IntRange(min=0), help="Write to this partition, whatever the keys are.")
@click.option("-z", "--compression", type=Choice(tuple(PRODUCER_CODECS)), default="none",
              show_default=True, help="How batches are compressed.")  # fmt: skip
@click.option("--transactional-id", metavar="ID", help="Write in a transaction: all of the input or nothing.")
@click.option("--transaction-size", type=IntRange(min=1), metavar="N",
              help="Commit after this number of records, instead of once at the end.")  # fmt: skip
@content_type_options
@registry_option
@schema_file_options
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@client_options
def produce_command(
    access: ClusterAccess,
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
    key_type: str,
    value_type: str,
    schema_registry: str | None,
    key_schema: Path | None,
    value_schema: Path | None,
    quiet: bool,
) -> None:
    """Write the lines of FILEs, or of the standard input, to TOPIC.

    \b
    echo hello | oncelog produce greetings
    oncelog produce orders -K: orders.txt
    oncelog produce orders -F json --transactional-id nightly-import orders.jsonl
    oncelog produce orders --schema-registry http://127.0.0.1:8081 \\
        --value-schema order.avsc orders.jsonl

    A record that no broker takes is tried for two minutes, or for --timeout if that is longer. The exit code is 0 if
    every record is acknowledged. Ctrl-C aborts a transaction. After a failure the command says what was written, or how
    to find out if that is not known.
    """
    from oncelog.cli.record_writer import PlainWriter, TransactionalWriter

    if transaction_size is not None and transactional_id is None:
        raise click.UsageError("--transaction-size needs --transactional-id")
    if key_type != "text" and style == "lines" and key_delimiter is None:
        raise click.UsageError("--key-type needs keys: give --key-delimiter or --format json")
    if key_delimiter == "":
        raise click.BadParameter("it is empty", param_hint="--key-delimiter")
    if style == "json" and (key_delimiter is not None or null_text is not None):
        raise click.UsageError("--key-delimiter and --null are for lines: with --format json the object says it all")
    types = SchemaTypes(schema_registry, key_type, value_type).for_writing(topic, key_schema, value_schema)
    line_format = LineFormat(
        is_json=style == "json",
        key_delimiter=None if key_delimiter is None else parsing.unescaped(key_delimiter, "--key-delimiter"),
        null_text=None if null_text is None else parsing.unescaped(null_text, "--null"),
        types=types,
        headers=tuple(_header(text) for text in headers),
    )
    access.check_settings({"transactional.id": "--transactional-id"})
    with access.explained():
        with access.admin() as admin:
            info = require_topics(admin, [topic])[topic]
        if partition is not None and partition >= len(info.partitions):
            raise click.ClickException(f"topic {topic} has {len(info.partitions)} partitions, there is no {partition}")
        with _producer(access, compression, transactional_id) as producer:
            writer: RecordWriter = (
                PlainWriter(producer, topic, line_format, partition, access)
                if transactional_id is None
                else TransactionalWriter(producer, topic, line_format, partition, access, transaction_size)
            )
            _run(access, writer, files, quiet)
            if transactional_id is not None:
                _await_markers(access, transactional_id)


def _header(text: str) -> tuple[str, bytes]:
    name, value = split_assignment(text, "--header")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"the name {name!r} is not UTF-8", param_hint="--header") from None
    return name, os.fsencode(value)


def _producer(access: ClusterAccess, compression: str, transactional_id: str | None) -> Producer:
    from oncelog.client.producer import Producer
    from oncelog.client.producer_config import PRODUCER_TABLE

    usual_ms = PRODUCER_TABLE.defaults.integer("delivery.timeout.ms")
    properties = access.properties(
        PRODUCER_TABLE,
        allow_auto_create_topics=False,
        compression_type=compression,
        transactional_id=transactional_id,
        batch_size=262_144,
        max_block_ms=max(access.timeout_ms, PRODUCER_TABLE.defaults.integer("max.block.ms")),
        delivery_timeout_ms=access.timeout_ms if access.timeout_ms > usual_ms else None,
    )
    if transactional_id is None:
        # An id in a file is for other programs; here the option decides whether there are transactions.
        properties.pop("transactional.id", None)
    return Producer(properties)


def _run(access: ClusterAccess, writer: RecordWriter, files: tuple[Path, ...], quiet: bool) -> None:
    from oncelog.core.errors import KafkaError

    started_s = time.monotonic()
    total_bytes = sum(path.stat().st_size for path in files)
    sent_bytes = 0
    is_typed = not files and sys.stdin.isatty()
    with progress.doing(lambda: _sent(writer, sent_bytes, total_bytes), unless=is_typed):
        try:
            writer.begin()
            for block in _input(files):
                writer.write(block)
                sent_bytes += len(block.data)
            writer.finish()
        except KeyboardInterrupt as interrupt:
            _fail(writer, interruption.cause(interrupt), interruption.exit_code(interrupt))
        except KafkaError as error:
            _fail(writer, access.explain(error))
        except OSError as error:
            _fail(writer, streams.sentence(error))
        except (InvalidLine, RuntimeError) as error:
            _fail(writer, str(error))
    if not quiet:
        seconds = max(time.monotonic() - started_s, 1e-6)
        rate = f"{writer.records / seconds:,.0f}/s"
        click.echo(f"{count_of(writer.records, 'record')} to {writer.topic} in {seconds:.1f} s ({rate})", err=True)


def _sent(writer: RecordWriter, sent_bytes: int, total_bytes: int) -> str:
    share = f", {sent_bytes / total_bytes:.0%} of {show_bytes(total_bytes)}" if total_bytes else ""
    return f"{count_of(writer.records, 'record')} to {writer.topic}{share}"


def _await_markers(access: ClusterAccess, transactional_id: str) -> None:
    """A commit is final once it is decided, and visible once its markers are written: a moment later.

    A reader that is started next should find everything, so that moment is waited for, though not for ever.
    """
    from oncelog.core.errors import KafkaError

    deadline_s = time.monotonic() + MARKERS_WAIT_MS / 1000
    impatient = dataclasses.replace(access, timeout_ms=MARKERS_WAIT_MS)
    with contextlib.suppress(KafkaError, click.ClickException), impatient.admin() as admin:
        while time.monotonic() < deadline_s:
            state = admin.describe_transactions([transactional_id])[transactional_id].state
            if not state.startswith("Prepare"):
                return
            time.sleep(0.01)


def _fail(writer: RecordWriter, problem: str, exit_code: int = 1) -> NoReturn:
    """Close the writer and report what was written."""
    progress.say(f"Error: {problem}")
    try:
        outcome = writer.give_up()
    except KeyboardInterrupt:
        outcome = writer.left_undone()
    progress.say(outcome)
    raise SystemExit(exit_code)


def _input(files: tuple[Path, ...]) -> Iterator[Block]:
    if not files:
        yield from blocks(sys.stdin.fileno(), "")
    for path in files:
        yield from file_blocks(path)
