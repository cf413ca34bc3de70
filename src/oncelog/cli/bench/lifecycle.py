"""Commands that start, stop and kill a broker of their own."""

from __future__ import annotations

from typing import Final

import click

from oncelog.bench import catalogue
from oncelog.bench.suite import split_names
from oncelog.bench.workload import Workload
from oncelog.cli.bench.options import Setup, records_option, setup_options, size_option
from oncelog.cli.parsing import Choice

_OWN: Final = "Only for brokers that are started here; the embedded one."


@click.command("start", epilog=_OWN)
@setup_options(rounds=5, warm_ups=0)
def start_command(setup: Setup) -> None:
    """Time a start, from the command to the first record that is acknowledged to a waiting client."""
    setup.measure(Workload("start", "start", "a folder that was stopped in order"), needs_ownership=True)


@click.command("memory", epilog=_OWN)
@records_option(1_000_000)
@size_option()
@setup_options(rounds=2, warm_ups=0)
def memory_command(setup: Setup, records: int, size_bytes: int) -> None:
    """Look at the memory of a broker at rest, and after a load."""
    title = f"{records:,} records of {size_bytes:,} B and 300 transactions"
    setup.measure(Workload("memory", "memory", title, records, size_bytes, transactions=300), needs_ownership=True)


@click.command("recovery", epilog=_OWN)
@click.option("--log-size", "sizes", default="64,256,1024", show_default=True, metavar="MB,...",
              help="Sizes of the log when the broker is killed.")  # fmt: skip
@setup_options(rounds=3, warm_ups=0)
def recovery_command(setup: Setup, sizes: str) -> None:
    """Kill a broker with -9 and time its start, against the size of its log."""
    workloads = [
        Workload(f"recovery-{size_mb}MB", "recovery", f"{size_mb:,} MB", max(1, size_mb * 1_000_000 // 1000), 1000,
                 curve="MB of log", x=size_mb)
        for size_mb in _numbers(sizes, "--log-size")
    ]  # fmt: skip
    setup.measure(*workloads, needs_ownership=True)


@click.command("growth", epilog=_OWN)
@click.argument("what", type=Choice(["aborted", "partitions", "ids"]))
@click.option("--points", metavar="X,...", help="Where to measure.  [default: those of the suite]")
@setup_options(rounds=2, warm_ups=0)
def growth_command(setup: Setup, what: str, points: str | None) -> None:
    """See how costs grow with aborted transactions, partitions, or transactional ids."""
    group = next(group for group in catalogue.FULL if group.name == what)
    first = group.workloads[0]
    if points:
        chosen = [
            Workload(f"{what}-{x}", first.kind, f"{x:,} {first.curve}", first.records, curve=first.curve, x=x)
            for x in _numbers(points, "--points")
        ]
    else:
        chosen = list(group.workloads)
    setup.measure(*chosen, needs_ownership=True)


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(word) for word in split_names([text])]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers above 0", param_hint=option)
    return found


COMMANDS = (start_command, memory_command, recovery_command, growth_command)
