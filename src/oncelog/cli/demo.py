"""`oncelog demo`: the pipeline proving itself on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.console_process import console_process, require_console
from oncelog.cli.extras import require_extra

if TYPE_CHECKING:
    from oncelog.testing import BrokerProcess

RESULTS = Path("demo-results")
LEFT = RESULTS / "broker"
KILLS = ("driver", "executor", "broker")
KEPT_ADDRESS = "127.0.0.1:9092"


@click.command("demo")
@click.option("--records", type=click.IntRange(min=100), default=150_000, show_default=True, help="Orders to generate.")
@click.option("--kills", default=",".join(KILLS), show_default=True,
              help="What to kill with -9, in this order; 'none' for nothing.")  # fmt: skip
@click.option("--master", help="A Spark master to run on, such as local[2,4].  [default: a cluster of two workers]")
@click.option("--bootstrap-servers", help="A Kafka-compatible cluster to run against.  [default: an embedded broker]")
@click.option("--console", "console_listen", is_flag=False, flag_value="127.0.0.1:8080", metavar="[HOST:PORT]",
              help="Show it in a browser while it runs: see 'oncelog console'.  [127.0.0.1:8080]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep all data, and print commands to inspect it.")
def demo_command(
    records: int,
    kills: str,
    master: str | None,
    bootstrap_servers: str | None,
    console_listen: str | None,
    keep: bool,
) -> None:
    """Orders through Spark, one transaction per micro-batch, with kills, and the proof that each was written once.

    Beside it the same pipeline writes at-least-once and at-most-once, to show what those double and lose. Leaves a
    picture, a page and the broker's data in demo-results/, in place of those of an earlier run, and prints the command
    that shows the transactions in a browser. The exit status is not 0 when the proof fails.
    """
    from oncelog.spark.java import JavaMissing, find_java

    if console_listen is not None:
        require_console()
    victims = parse_kills(kills, master, bootstrap_servers)
    if bootstrap_servers is not None:
        with (access := ClusterAccess(bootstrap_servers)).explained():
            access.check_reachable()
    _require_spark()
    try:
        find_java()
    except JavaMissing as missing:
        raise click.ClickException(str(missing)) from None
    prefix = _prefix(bootstrap_servers)
    with _folder(keep) as folder:
        proven = _run(folder, prefix, records, victims, master, bootstrap_servers, console_listen)
        if keep:
            _explain(folder, prefix, bootstrap_servers)
        left = folder / "broker" if keep or bootstrap_servers is not None else _leave(folder / "broker")
    if left is not None:
        click.echo(f"To see the transactions in a browser: {show_command(left, bootstrap_servers)}")
    sys.exit(0 if proven else 1)


def _folder(keep: bool) -> contextlib.AbstractContextManager[Path]:
    from oncelog.testing.broker import temporary_folder

    name = "oncelog-demo-"
    return contextlib.nullcontext(Path(tempfile.mkdtemp(prefix=name))) if keep else temporary_folder(name)


def _require_spark() -> None:
    require_extra("spark", "Spark", "pyspark", "pandas", "pyarrow")


def parse_kills(text: str, master: str | None, bootstrap_servers: str | None) -> list[str]:
    """The victims, without those that are not ours to kill."""
    names = [] if text.strip().lower() == "none" else [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KILLS:
            raise click.BadParameter(
                f"{name!r} cannot be killed; valid: {', '.join(KILLS)}, none", param_hint="--kills"
            )
    spared = {"executor"} if master is not None else set()
    spared |= {"broker"} if bootstrap_servers is not None else set()
    return [name for name in names if name not in spared]


def _leave(data: Path) -> Path | None:
    """Moves the broker's data to where they outlive the demo, in place of an earlier run's."""
    from oncelog.storage.folder_lock import FolderInUseError, FolderLock

    if LEFT.exists():
        try:
            FolderLock(LEFT).release()
        except FolderInUseError as error:
            click.echo(f"The data of this run are not kept: {error}", err=True)
            return None
        shutil.rmtree(LEFT)
    shutil.move(data, LEFT)
    return LEFT


def show_command(data: Path, bootstrap_servers: str | None) -> str:
    """As it can be typed here: with the path of this program where it is not on the PATH, as under `make demo`."""
    program = "oncelog" if shutil.which("oncelog") else os.path.relpath(sys.argv[0])
    if bootstrap_servers is not None:
        return f"{program} console -b {bootstrap_servers}"
    return f"{program} serve --data-dir {data} --console"


def _run(
    folder: Path,
    prefix: str,
    records: int,
    kills: list[str],
    master: str | None,
    bootstrap_servers: str | None,
    console_listen: str | None,
) -> bool:
    from rich.console import Console

    from oncelog.spark.demo.chaos import DemoFailed
    from oncelog.spark.demo.report import print_report, write_report
    from oncelog.spark.demo.run import Demo
    from oncelog.spark.standalone_cluster import StandaloneCluster

    console = Console()
    cluster = StandaloneCluster(folder / "cluster") if master is None else None
    with _broker(folder, bootstrap_servers) as (servers, broker), _watched(servers, console_listen):
        demo = Demo(servers, folder, records, kills, console, broker, cluster, master or "", prefix)
        try:
            outcome = demo.run()
        except DemoFailed as failed:
            raise click.ClickException(str(failed)) from None
        finally:
            if cluster is not None:
                cluster.stop()
        print_report(outcome, console)
        picture, page = write_report(outcome, RESULTS)
        console.print(f"picture: {picture}   page: {page}")
        if console_listen is not None:
            click.pause("The console stays until a key is pressed ...")
    return outcome.proven


def _watched(servers: str, console_listen: str | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if console_listen is None else console_process(servers, console_listen)


@contextlib.contextmanager
def _broker(folder: Path, bootstrap_servers: str | None) -> Iterator[tuple[str, Any]]:
    if bootstrap_servers is not None:
        yield bootstrap_servers, None
        return
    from oncelog.testing import BrokerProcess

    broker: BrokerProcess = BrokerProcess(folder / "broker").start()
    try:
        yield broker.bootstrap_servers, broker
    finally:
        broker.stop()


def _prefix(bootstrap_servers: str | None) -> str:
    """On a cluster that outlives the demo every run has topics of its own."""
    if bootstrap_servers is None:
        return "demo"
    import time

    return f"oncelog-demo-{int(time.time())}"


def look_around(folder: Path, prefix: str, bootstrap_servers: str | None) -> list[str]:
    """Commands for what was kept, in an order in which they work."""
    servers = bootstrap_servers or KEPT_ADDRESS
    there = f"-b {servers}"
    commands = [
        f"oncelog topic list {there}",
        f"oncelog consume {prefix}-enriched-exactly-once --count 5 {there}",
        f"oncelog consume {prefix}-revenue -F key-value --count 5 {there}",
        f"oncelog group describe {prefix}-exactly-once {there}",
        f"oncelog txn describe {prefix}-exactly-once {there}",
    ]
    if bootstrap_servers is None:
        data = folder / "broker"
        offline = f"oncelog log timeline {data / f'{prefix}-enriched-exactly-once-0'}"
        commands = [offline, f"oncelog serve --data-dir {data} --listen {servers}", *commands]
    return commands


def _explain(folder: Path, prefix: str, bootstrap_servers: str | None) -> None:
    click.echo(f"Kept: {folder} (driver.log, cluster/, checkpoints/, events.jsonl)")
    if bootstrap_servers is None:
        click.echo("Transactions in the log; then the broker once more, and in another terminal what it holds:")
    for command in look_around(folder, prefix, bootstrap_servers):
        click.echo(f"  {command}")


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--master", help="The Spark master.  [default: all cores of this machine]")
@click.option("--conf", "assignments", metavar="KEY=VALUE", multiple=True, help="A Spark setting; may be repeated.")
@click.option("--bootstrap-servers", help="Passed to the program as ONCELOG_BOOTSTRAP_SERVERS.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(
    master: str | None,
    assignments: tuple[str, ...],
    bootstrap_servers: str | None,
    program: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run a PySpark PROGRAM on a Spark set up for exactly-once pipelines."""
    from oncelog.cli import interruption
    from oncelog.spark.java import JavaMissing
    from oncelog.spark.runner import run_program

    settings = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{assignment!r} is not spark.KEY=VALUE", param_hint="--conf")
        settings[key] = value
    _require_spark()
    interruption.treat_signals_as_python_does()
    try:
        run_program(program, arguments, master=master, settings=settings, bootstrap_servers=bootstrap_servers)
    except JavaMissing as missing:
        raise click.ClickException(str(missing)) from None
    except Exception:  # noqa: BLE001  # of the program, whose author needs all of it
        traceback.print_exc()
        sys.exit(1)
