"""The group of commands, the suite and the profiler."""

from __future__ import annotations

from pathlib import Path

import click

from oncelog.bench import catalogue, suite
from oncelog.bench.interruption import sigterm_in_order
from oncelog.cli import progress
from oncelog.cli.bench import lifecycle, loads
from oncelog.cli.bench.options import (
    clusters_option,
    require_driver,
    seconds_option,
    settings_option,
    sides_of,
    split_settings,
)
from oncelog.cli.output import print_wrapped
from oncelog.cli.parsing import IntRange, NewPath
from oncelog.core.config import did_you_mean


@click.group("bench")
@click.pass_context
def bench_command(context: click.Context) -> None:
    """Measure produce, consume and transaction rates with confluent-kafka as the driver.

    Also latency, consumer groups, start, memory, recovery and growth. Works on any Kafka-compatible cluster, or on a
    broker that is started for it. Figures mean something as ratios of clusters measured in one run on one machine. A
    run in which a record did not arrive has no figures, and the exit code is 1. Interrupted, it shows what it has.
    """
    context.with_resource(sigterm_in_order())


@bench_command.command("suite")
@clusters_option
@click.option("--quick", is_flag=True, help="Only the main figures, with smaller workloads.")
@click.option("--only", multiple=True, metavar="NAME,...", help="Groups or workloads, see --list.")
@click.option("--rounds", type=IntRange(1), help="Number of rounds, instead of the suite's.")
@settings_option
@click.option("--results", "folder", type=NewPath(file_okay=False, path_type=Path),
              help="Where the report goes; parts run one by one are merged there.  "
                   f"[default: {suite.DEFAULT_FOLDER}, or {suite.QUICK_FOLDER} with --quick]")  # fmt: skip
@click.option("--list", "is_list", is_flag=True, help="List the names of groups and workloads.")
def suite_command(
    clusters: tuple[str, ...],
    quick: bool,
    only: tuple[str, ...],
    rounds: int | None,
    client_settings: tuple[str, ...],
    folder: Path | None,
    is_list: bool,
) -> None:
    """Run everything there is, and leave a report.

    What needs a broker that can be stopped and killed is left out for clusters given by --bootstrap-servers.
    """
    if is_list:
        for group in catalogue.FULL:
            print_wrapped(f"{group.name}: {', '.join(workload.name for workload in group.workloads)}", 4)
        return
    require_driver()
    choice = suite.Choice(quick, suite.split_names(only), rounds, split_settings(client_settings))
    try:
        choice.groups()
    except KeyError as error:
        near = _like(str(error.args[0]))
        raise click.BadParameter(
            f"there is no group or workload {error}{near}; see --list", param_hint="--only"
        ) from None
    target = folder or choice.folder
    with progress.doing("measuring"):
        results = suite.run(choice, sides_of(clusters), target, progress.say)
    raise SystemExit(suite.report(results, target, progress.say))


@bench_command.command("profile")
@click.argument("workload")
@seconds_option(10.0, "How long to look, at least.")
@click.option("--rate", default=200, show_default=True, type=IntRange(1), help="Samples per second.")
@click.option("--results", "path", type=NewPath(dir_okay=False, path_type=Path),
              help="The flame graph.  [default: bench-results/profile-WORKLOAD.svg]")  # fmt: skip
@click.option("--native", "with_native", is_flag=True, help="Show frames of C libraries as well.")
def profile_command(workload: str, seconds: float, rate: int, path: Path | None, with_native: bool) -> None:
    """Run WORKLOAD on an embedded broker under a sampling profiler, and leave a flame graph of the broker.

    WORKLOAD is one that 'oncelog bench suite --list' names. The profiler is py-spy: pip install 'oncelog[bench]'.
    """
    from oncelog.bench import profiling

    require_driver()
    try:
        chosen = catalogue.find(workload)
        target = path or suite.DEFAULT_FOLDER / f"profile-{workload}.svg"
        with progress.doing("measuring"):
            profiling.profile(chosen, sides_of(())[0], target, seconds, rate, progress.say, with_native=with_native)
    except KeyError:
        raise click.BadParameter(
            f"there is no workload {workload!r}{_like(workload)}; see 'oncelog bench suite --list'"
        ) from None
    except profiling.ProfilerError as error:
        raise click.ClickException(str(error)) from error
    click.echo(str(target))


for command in (*loads.COMMANDS, *lifecycle.COMMANDS):
    bench_command.add_command(command)


def _like(name: str) -> str:
    groups = [group.name for group in catalogue.FULL]
    return did_you_mean(name, [*groups, *(workload.name for group in catalogue.FULL for workload in group.workloads)])
