"""`oncelog demo`: the pipeline proving itself on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.cluster_up import require_zookeeper
from oncelog.cli.console_process import check_console_address, console_beside
from oncelog.cli.extras import require_extra
from oncelog.cli.parsing import IntRange

if TYPE_CHECKING:
    from oncelog.spark.demo.nodes import Nodes

RESULTS = Path("demo-results")
LEFT = RESULTS / "broker"
CLUSTER = RESULTS / "cluster"
KILLS = ("driver", "executor", "broker")
CLUSTER_KILLS = ("driver", "executor", "leader", "coordinator", "controller")
CONTROLLERS = 3
KEPT_ADDRESS = "127.0.0.1:9092"
_MASTER = re.compile(r"local(-cluster)?(\[.+\])?|spark://.+|k8s://.+|yarn")
"""Drivers that fail at once because of it are started again and again, as those that are killed."""


@click.command("demo")
@click.option("--records", type=IntRange(min=100), default=150_000, show_default=True, help="Orders to generate.")
@click.option("--brokers", type=IntRange(min=1), default=1, show_default=True,
              help="More than one: a cluster, with three controllers on a ZooKeeper.")  # fmt: skip
@click.option("--kills",
              help="What to kill with -9, in this order; 'none' for nothing.  [default: driver,executor,broker; in a "
                   "cluster driver,executor,leader,coordinator,controller]")  # fmt: skip
@click.option("--master", help="A Spark master to run on, such as local[2,4].  [default: a cluster of two workers]")
@click.option("--bootstrap-servers", help="A Kafka-compatible cluster to run against.  [default: an embedded broker]")
@click.option("--console", "console_listen", is_flag=False, flag_value="127.0.0.1:8080", metavar="[HOST:PORT]",
              help="Show it in a browser while it runs: see 'oncelog console'.  [127.0.0.1:8080]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep all data, and print commands to inspect it.")
def demo_command(
    records: int,
    brokers: int,
    kills: str | None,
    master: str | None,
    bootstrap_servers: str | None,
    console_listen: str | None,
    keep: bool,
) -> None:
    """Orders through Spark, one transaction per micro-batch, with kills, and the proof that each was written once.

    Beside it the same pipeline writes at-least-once and at-most-once, to show what those double and lose. Leaves a
    picture, a page and the broker's data in demo-results/, in place of those of an earlier run, and prints the command
    that shows the transactions in a browser. The exit status is not 0 when the proof fails.

    In a cluster, the leader of the output, the coordinator of its transactions and the active controller are killed.
    """
    from oncelog.spark.java import JavaMissing, find_java

    if console_listen is not None:
        check_console_address(console_listen)
    if brokers > 1 and bootstrap_servers is not None:
        raise click.UsageError("--brokers is for a cluster that is started, --bootstrap-servers for one that runs")
    if master is not None and not _MASTER.fullmatch(master):
        raise click.BadParameter(f"{master!r}: write local[2,4], spark://HOST:PORT or yarn", param_hint="--master")
    victims = parse_kills(kills, master, bootstrap_servers, brokers)
    if bootstrap_servers is not None:
        with (access := ClusterAccess(bootstrap_servers)).explained():
            access.check_reachable()
    _require_spark()
    try:
        find_java()
    except JavaMissing as missing:
        raise click.ClickException(str(missing)) from None
    if brokers > 1:
        require_zookeeper(to_start=True)
    prefix = _prefix(bootstrap_servers)
    with _folder(keep) as folder:
        proven = _run(folder, prefix, records, brokers, victims, master, bootstrap_servers, console_listen)
        if keep:
            _explain(folder, prefix, bootstrap_servers, brokers)
        data = folder / ("broker" if brokers == 1 else "nodes")
        left = data if keep or bootstrap_servers is not None else _leave(data, LEFT if brokers == 1 else CLUSTER)
    if left is not None:
        click.echo(f"To see the transactions in a browser: {show_command(left, bootstrap_servers, brokers)}")
    sys.exit(0 if proven else 1)


def _folder(keep: bool) -> contextlib.AbstractContextManager[Path]:
    from oncelog.testing.broker import temporary_folder

    name = "oncelog-demo-"
    return contextlib.nullcontext(Path(tempfile.mkdtemp(prefix=name))) if keep else temporary_folder(name)


def _require_spark() -> None:
    require_extra("spark", "Spark", "pyspark", "pandas", "pyarrow")


def parse_kills(given: str | None, master: str | None, bootstrap_servers: str | None, brokers: int = 1) -> list[str]:
    """The kinds of processes to kill; if none are given, all kinds that the demo has started itself."""
    kills = KILLS if brokers == 1 else CLUSTER_KILLS
    text = ",".join(kills) if given is None else given
    names = [] if text.strip().lower() == "none" else [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in kills:
            raise click.BadParameter(
                f"{name!r} cannot be killed; valid: {', '.join(kills)}, none", param_hint="--kills"
            )
    spared = {"executor"} if master is not None else set()
    spared |= {"broker"} if bootstrap_servers is not None else set()
    for name in spared.intersection(names if given is not None else ()):
        option = "--master" if name == "executor" else "--bootstrap-servers"
        raise click.BadParameter(f"the {name} is not started here with {option}, nor killed", param_hint="--kills")
    return [name for name in names if name not in spared]


def _leave(data: Path, place: Path = LEFT) -> Path | None:
    """Moves the broker's data to where they outlive the demo, in place of an earlier run's."""
    from oncelog.storage.folder_lock import FolderInUseError, FolderLock

    if place.exists():
        try:
            FolderLock(place).release()
        except FolderInUseError as error:
            click.echo(f"The data of this run are not kept: {error}", err=True)
            return None
        shutil.rmtree(place)
    shutil.move(data, place)
    return place


def show_command(data: Path, bootstrap_servers: str | None, brokers: int = 1) -> str:
    """As it can be typed here: with the path of this program where it is not on the PATH, as under `make demo`."""
    program = "oncelog" if shutil.which("oncelog") else os.path.relpath(sys.argv[0])
    if bootstrap_servers is not None:
        return f"{program} console -b {bootstrap_servers}"
    if brokers > 1:
        return f"{program} cluster up --data-dir {data} --console"
    return f"{program} serve --data-dir {data} --console"


def _run(
    folder: Path,
    prefix: str,
    records: int,
    brokers: int,
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
    with (
        _nodes(folder, bootstrap_servers, brokers, prefix) as (servers, nodes),
        # Spark takes all processors: the pages of an idle console would be seen when it is over.
        console_beside(servers, console_listen, priority="low"),
    ):
        demo = Demo(servers, folder, records, kills, console, nodes, cluster, master or "", prefix)
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


@contextlib.contextmanager
def _nodes(
    folder: Path, bootstrap_servers: str | None, brokers: int, prefix: str
) -> Iterator[tuple[str, Nodes | None]]:
    """The address for clients, and the nodes that the demo may kill: none in a cluster of the user's."""
    if bootstrap_servers is not None:
        yield bootstrap_servers, None
        return
    from oncelog.spark.demo.nodes import OneBroker
    from oncelog.testing import BrokerProcess

    if brokers > 1:
        with _cluster(folder / "nodes", brokers, prefix) as found:
            yield found
        return
    broker: BrokerProcess = BrokerProcess(folder / "broker").start()
    try:
        yield broker.bootstrap_servers, OneBroker(broker)
    finally:
        broker.stop()


@contextlib.contextmanager
def _cluster(folder: Path, brokers: int, prefix: str) -> Iterator[tuple[str, Nodes]]:
    import oncelog.testing
    from oncelog.cli.demo_cluster import ClusterNodes
    from oncelog.spark.demo.pipeline import Topics

    with oncelog.testing.cluster(brokers, CONTROLLERS, data_dir=folder) as cluster:
        yield cluster.bootstrap_servers, ClusterNodes(cluster, Topics(prefix))


def _prefix(bootstrap_servers: str | None) -> str:
    """On a cluster that outlives the demo every run has topics of its own."""
    if bootstrap_servers is None:
        return "demo"
    import time

    return f"oncelog-demo-{int(time.time())}"


def look_around(folder: Path, prefix: str, bootstrap_servers: str | None, brokers: int = 1) -> list[str]:
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
    if brokers > 1:
        port = servers.rpartition(":")[2]
        return [f"oncelog cluster up --data-dir {folder / 'nodes'} --port {port}", *commands]
    if bootstrap_servers is None:
        data = folder / "broker"
        offline = f"oncelog log timeline {data / f'{prefix}-enriched-exactly-once-0'}"
        commands = [offline, f"oncelog serve --data-dir {data} --listen {servers}", *commands]
    return commands


def _explain(folder: Path, prefix: str, bootstrap_servers: str | None, brokers: int) -> None:
    click.echo(f"Kept: {folder} (driver.log, cluster/, checkpoints/, events.jsonl)")
    if brokers > 1:
        click.echo("The cluster once more, and in another terminal what it holds:")
    elif bootstrap_servers is None:
        click.echo("Transactions in the log; then the broker once more, and in another terminal what it holds:")
    for command in look_around(folder, prefix, bootstrap_servers, brokers):
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
