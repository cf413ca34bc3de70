"""`oncelog cluster up`: a whole cluster on this machine, as processes that end together."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from oncelog.cli import progress
from oncelog.cli.cluster_access import split_assignment, unreachable
from oncelog.cli.console_process import check_console_address, console_beside
from oncelog.cli.extras import require_extra
from oncelog.cli.parsing import IntRange, NewPath
from oncelog.core.address import parse_address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError

if TYPE_CHECKING:
    from oncelog.testing.cluster_plan import ClusterPlan
    from oncelog.testing.local_cluster import Cluster

BROKERS: Final = 3
CONTROLLERS: Final = 3
FIRST_PORT: Final = 9092
_LAST_FIRST_PORT: Final = 65_000
_CONNECT_TIMEOUT_S: Final = 5.0
NODE_SETTINGS: Final = {"process.roles", "node.id", "cluster.id", "listeners", "log.dirs"}


@click.command("up")
@click.option("--brokers", type=IntRange(1, 50), help="[default: 3, or as many as the folder has]")
@click.option("--controllers", type=IntRange(1, 9),
              help="With 1 there is no ZooKeeper.  [default: 3, or as many as the folder has]")  # fmt: skip
@click.option("--data-dir", "folder", type=NewPath(path_type=Path), default="oncelog-cluster", show_default=True,
              help="The folder of all nodes; a cluster that is in it goes on.")  # fmt: skip
@click.option("--zookeeper", metavar="HOST:PORT[/CHROOT]",
              help="A ZooKeeper that runs already.  [default: one is started]")  # fmt: skip
@click.option("--port", type=IntRange(0, _LAST_FIRST_PORT),
              help="Of the first broker; others have the next ones, controllers 100 more, ZooKeeper 200 more; 0 picks "
                   "free ones.  [default: 9092, or those of the folder]")  # fmt: skip
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of all nodes, which the folder keeps; may be repeated.",
)
@click.option("--console", "console_listen", is_flag=False, flag_value="127.0.0.1:8080", metavar="[HOST:PORT]",
              help="Show it in a browser, at this address: see 'oncelog console'.  [127.0.0.1:8080]")  # fmt: skip
def up_command(
    brokers: int | None,
    controllers: int | None,
    folder: Path,
    zookeeper: str | None,
    port: int | None,
    assignments: tuple[str, ...],
    console_listen: str | None,
) -> None:
    """Run a cluster on this machine: brokers, controllers, and ZooKeeper for several controllers.

    Prints "oncelog cluster ready on HOST:PORT,..." when clients are accepted, then shows who is active, who leads how
    many partitions, and what has died; nothing is started again by itself. Ctrl-C or SIGTERM stops all of it. The next
    time it goes on from the same folder.
    """
    from oncelog.testing.cluster_plan import ClusterFolderError
    from oncelog.testing.local_cluster import Cluster

    if console_listen is not None:
        check_console_address(console_listen)
    try:
        plan = _plan(folder, brokers, controllers, zookeeper, port, assignments)
    except ClusterFolderError as error:
        raise click.ClickException(f"{folder}: {error}" if str(folder) not in str(error) else str(error)) from None
    _check_zookeeper(plan)
    with _owned(folder):
        _check_ports(plan)
        plan.save(folder)
        cluster = Cluster(folder, plan, log_level="info")
        with _running(cluster), console_beside(cluster.bootstrap_servers, console_listen):
            _introduce(cluster)
            _watch(cluster)


def _plan(
    folder: Path,
    brokers: int | None,
    controllers: int | None,
    zookeeper: str | None,
    port: int | None,
    assignments: tuple[str, ...],
) -> ClusterPlan:
    """The plan of the folder, changed as the options say, or a new plan."""
    from oncelog.testing.cluster_plan import ClusterPlan
    from oncelog.testing.zookeeper import free_ports

    plan = ClusterPlan.load(folder)
    if plan is None:
        first = FIRST_PORT if port is None else port
        plan = ClusterPlan.new(brokers or BROKERS, controllers or CONTROLLERS, first_port=first, zookeeper=zookeeper)
    else:
        plan = plan if brokers is None else plan.with_brokers(brokers)
        plan = plan if controllers is None else plan.with_controllers(controllers)
        plan = plan if zookeeper is None else plan.with_zookeeper(zookeeper)
        plan = plan.with_ports(port) if port else plan
    if 0 in plan.ports.values() or port == 0:
        plan = plan.with_these_ports(free_ports(len(plan.ports)))
    return replace(plan, settings={**plan.settings, **_settings(assignments)})


def _settings(assignments: tuple[str, ...]) -> dict[str, str]:
    """Checked before the folder keeps them: with one that is wrong no node would start any more."""
    settings = dict(split_assignment(assignment, "--set") for assignment in assignments)
    for name in settings.keys() & NODE_SETTINGS:
        raise click.BadParameter(f"{name} is chosen for each node of a cluster", param_hint="--set")
    try:
        BROKER_CONFIG.parse(settings)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None
    return settings


def _check_zookeeper(plan: ClusterPlan) -> None:
    if not plan.is_on_zookeeper:
        return
    try:
        require_zookeeper(to_start=plan.zookeeper is None)
    except click.ClickException as error:
        raise click.ClickException(
            f"{error.message}. Or run a cluster with one controller, which needs no ZooKeeper: "
            "oncelog cluster up --controllers 1"
        ) from None
    if plan.zookeeper is not None:
        _check_reachable(plan.zookeeper)


def require_zookeeper(*, to_start: bool) -> None:
    """What controllers need to use a ZooKeeper, and what is needed to start one."""
    from oncelog.testing.zookeeper import zookeeper_missing

    require_extra("zookeeper", "the client of ZooKeeper", "kazoo")
    reason = zookeeper_missing() if to_start else None
    if reason is not None:
        raise click.ClickException(reason)


def _check_reachable(connect: str) -> None:
    """One of the servers is enough."""
    try:
        addresses = [parse_address(server) for server in connect.partition("/")[0].split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{connect!r} is not HOST:PORT,...: {error}", param_hint="--zookeeper") from None
    problems = unreachable(addresses, _CONNECT_TIMEOUT_S)
    if problems:
        raise click.ClickException(f"ZooKeeper cannot be reached at {problems}. Is it running?")


def _check_ports(plan: ClusterPlan) -> None:
    taken = [f"{port} ({name})" for name, port in plan.ports.items() if _is_taken(port)]
    if taken:
        raise click.ClickException(
            f"ports of 127.0.0.1 that are taken by others: {', '.join(taken)}. End what uses them, or choose others "
            "with --port 0"
        )


def _is_taken(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    from oncelog.storage.folder_lock import LOCK_FILE, FolderInUseError, FolderLock
    from oncelog.testing.cluster_plan import make_folder

    try:
        make_folder(folder)
        lock = FolderLock(folder)
    except FolderInUseError:
        holder = (folder / LOCK_FILE).read_text().strip()
        raise click.ClickException(
            f"the cluster of {folder} is running, under process {holder}: stop that, or choose another --data-dir"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be used: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _running(cluster: Cluster) -> Iterator[None]:
    """From the start of all nodes to their clean end. A second Ctrl-C kills them."""
    try:
        with progress.doing("starting the cluster"):
            cluster.start()
    except RuntimeError as error:
        cluster.kill()
        raise click.ClickException(str(error)) from error
    except BaseException:
        cluster.kill()
        raise
    try:
        yield
    except KeyboardInterrupt:
        zookeeper = "" if cluster.zookeeper is None else ", and then ZooKeeper"
        progress.say(f"stopping brokers and controllers{zookeeper}; Ctrl-C again kills them")
        cluster.stop()
    finally:
        cluster.kill()


def _introduce(cluster: Cluster) -> None:
    first = cluster.bootstrap_servers.partition(",")[0]
    click.echo(f"oncelog cluster ready on {cluster.bootstrap_servers}")
    click.echo(f"  clients     bootstrap.servers={cluster.bootstrap_servers}")
    click.echo(f"  a topic     oncelog topic create orders --partitions 6 -b {first}")
    click.echo(f"  its state   oncelog cluster describe -b {first}")
    click.echo(f"  logs        {cluster.folder}/*.log")


def _watch(cluster: Cluster) -> None:
    from oncelog.cli.cluster_watch import watch

    watch(cluster)
    raise click.ClickException(f"all brokers and controllers have ended; their logs are {cluster.folder}/*.log")
