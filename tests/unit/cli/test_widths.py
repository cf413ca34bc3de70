"""What is shown on a terminal fits 80 columns; a pipe gets everything whole."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from oncelog.cli import timeline_view
from oncelog.cli.main import cli
from oncelog.client import Admin, NewTopic, Producer
from oncelog.connect.progress import Progress, Status
from oncelog.connect.status_topic import StatusWriter
from oncelog.core.ids import TopicPartition
from oncelog.inspection.transactions import PartitionHistory
from oncelog.monitoring.transaction_spans import TransactionOutcome, TransactionSpan
from oncelog.testing import BrokerProcess
from tests.unit.cli.test_expected_conveniences import on_a_terminal

COLUMNS = 80
LONG_ID = "payments-of-the-european-warehouse-number-17-instance-000042"


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*words, name))


def test_the_help_of_every_command_fits() -> None:
    found = list(commands(cli))
    assert len(found) > 60
    wide = []
    for words in found:
        result = CliRunner().invoke(cli, [*words, "--help"], terminal_width=COLUMNS)
        assert result.exit_code == 0, result.output
        wide += [f"{' '.join(words)}: {line}" for line in result.output.splitlines() if len(line) > COLUMNS]
    assert wide == []


@pytest.mark.parametrize("command", ["lab", "bench suite"])
def test_a_list_fits_a_terminal_and_has_a_line_each_in_a_pipe(command: str) -> None:
    arguments = [*command.split(), "--list"]
    code, shown = on_a_terminal(arguments, COLUMNS)
    assert code == 0
    assert max(map(len, shown.splitlines())) <= COLUMNS
    piped = CliRunner().invoke(cli, arguments).output
    assert " ".join(shown.split()) == " ".join(piped.split())
    assert all(not line.startswith(" ") for line in piped.splitlines())


def test_the_size_of_a_cluster_fits(shared_broker: BrokerProcess, transactional: Callable[..., Producer]) -> None:
    transactional("id-of-this-test")
    code, shown = on_a_terminal(["cluster", "info", "-b", shared_broker.bootstrap_servers], COLUMNS)
    assert code == 0
    assert "more of internal topics metadata.version=" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= COLUMNS


def test_transactions_with_long_names_fit(
    shared_broker: BrokerProcess, admin: Admin, transactional: Callable[..., Producer], name: str
) -> None:
    topic, later, servers = f"{LONG_ID}-{name}", f"{LONG_ID}-later-{name}", shared_broker.bootstrap_servers
    admin.create_topics([NewTopic(topic, 3), f"{topic}-{LONG_ID}"])
    for transactional_id in (topic, later):
        producer = transactional(transactional_id)
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"x", partition=partition).result(60)
        producer.send(f"{topic}-{LONG_ID}", b"x").result(60)
    code, described = on_a_terminal(["txn", "describe", topic, "-b", servers], COLUMNS)
    assert code == 0
    code, blocking = on_a_terminal(["txn", "blocking", topic, f"{topic}-{LONG_ID}", "-b", servers], COLUMNS)
    assert code == 0
    for shown in (described, blocking):
        assert "…" in shown
        commands = [line for line in shown.splitlines() if line.startswith("      oncelog txn fence ")]
        assert len(commands) == (4 if shown is blocking else 0)
        assert all(topic in line or later in line for line in commands), "a command is to be copied: it stays whole"
        assert [line for line in shown.splitlines() if len(line) > COLUMNS and line not in commands] == []
    assert f"{name}-2," in described
    piped = CliRunner().invoke(cli, ["txn", "describe", topic, "-b", servers]).output
    assert piped.splitlines()[0].startswith(f"{topic}  Ongoing  producer ")
    assert piped.splitlines()[-1].endswith(f"{topic}-{LONG_ID}-0")


def test_a_word_is_no_number(run: Callable[..., Result]) -> None:
    assert "'x' is not a valid integer.\n" in run("topic", "create", "t", "-p", "x").output
    assert "'x' is not a valid number.\n" in run("bench", "produce", "--linger-ms", "x").output
    assert "0 is not in the range x>=1" in run("topic", "create", "t", "-p", "0").output


def timeline(*, terminal: bool) -> list[str]:
    span = TransactionSpan(
        producer_id=1234567,
        producer_epoch=12,
        first_offset=1_000_000,
        last_offset=1_000_099,
        first_timestamp=1_700_000_000_000,
        last_timestamp=1_700_000_000_500,
        records=100,
        outcome=TransactionOutcome.COMMITTED,
        marker_offset=1_000_100,
        marker_timestamp=1_700_000_000_600,
    )
    history = PartitionHistory(TopicPartition("orders", 0), 999_000, 1_000_101, [span])
    written = io.StringIO()
    console = Console(file=written, width=COLUMNS, force_terminal=terminal, color_system=None)
    timeline_view.draw(console, history, {1234567: LONG_ID}, limit=0)
    return written.getvalue().splitlines()


def test_a_timeline_fits_a_terminal_with_ids_that_keep_start_and_end() -> None:
    lines = timeline(terminal=True)
    assert max(map(len, lines)) <= COLUMNS
    beside, listed = (line for line in lines if "…" in line)
    assert "payments-of-" in beside
    assert "42 (1234567) " in beside
    assert "  committed  payments-of-" in listed
    assert listed.endswith("42 (1234567)")
    assert lines[-1].startswith("    epoch 12  100 records")


def test_a_pipe_gets_the_ids_of_a_timeline_whole() -> None:
    beside, listed = (line for line in timeline(terminal=False) if f"{LONG_ID} (1234567)" in line)
    assert "●" in beside
    assert "marker 1000100  committed" in listed
    assert "epoch 12" in listed


def test_what_connectors_report_fits(shared_broker: BrokerProcess, name: str) -> None:
    error = f"the record at {LONG_ID}-0 offset 4711 cannot be written: {'there is no column for it, ' * 9}"
    with StatusWriter({"bootstrap.servers": shared_broker.bootstrap_servers}) as writer:
        progress = Progress(records=1_234_567, commits=12_345, dead_letters=99, lag=12_345)
        writer.write(Status(name, progress, state="stopped", restarts=12, error=error))
    code, shown = on_a_terminal(["connect", "status", "-b", shared_broker.bootstrap_servers], COLUMNS)
    assert code == 0
    assert max(map(len, shown.splitlines())) <= COLUMNS, shown
    assert f"{name}: the record at {LONG_ID}-0 offset 4711" in " ".join(shown.split())
