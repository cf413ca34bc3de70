"""`oncelog connect`: connectors between databases and topics."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.output import count_of, output_option, print_json, print_table, print_wrapped, show_duration
from oncelog.core.address import LOOPBACK, parse_address

if TYPE_CHECKING:
    from oncelog.connect.kinds import Kind
    from oncelog.connect.progress import Status

_FILE = click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
STATUS_EVERY_S = 5.0


@click.group("connect")
def connect_command() -> None:
    """Move data between databases and topics, exactly once.

    FILE is TOML, with a table [connectors.NAME] for each connector; docs/connectors.md has all settings.
    """


@connect_command.command("run")
@_FILE
@click.option("--metrics", default=None, metavar="HOST:PORT", help="Serve metrics for Prometheus on this address.")
@click.option("--until-current", is_flag=True, help="End when everything that was there at the start is copied.")
@cluster_options
def run_command(access: ClusterAccess, file: Path, metrics: str | None, until_current: bool) -> None:
    """Run the connectors of FILE until SIGTERM, SIGHUP or Ctrl-C.

    A connector starts again after temporary errors, with pauses of up to a minute. It stops when going on could lose or
    repeat something; the others go on. The exit code is 1 if one has stopped. A newer process with a connector of the
    same name takes over from an older one.
    """
    from oncelog.connect.status_topic import StatusWriter
    from oncelog.connect.supervisor import Supervisor

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", handlers=[_LogLines()])
    client = _client(access)
    supervisor = Supervisor(_connectors(file, client), _announce, until_current=until_current)
    if metrics is not None:
        _serve_metrics(metrics, supervisor)
    supervisor.start()
    with StatusWriter(client) as writer, progress.doing(lambda: _copied(supervisor.statuses)):
        try:
            while not supervisor.has_ended(STATUS_EVERY_S):
                _write_all(writer, supervisor.statuses)
        except KeyboardInterrupt:
            supervisor.stop()
        _write_all(writer, supervisor.statuses)
    if any(status.state == "stopped" for status in supervisor.statuses):
        sys.exit(1)


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            progress.say(self.format(record))
        except Exception:  # noqa: BLE001  # as other handlers do: a terminal that is gone must not end a connector
            self.handleError(record)


def _announce(status: Status) -> None:
    text = f"{status.name}: {status.state}"
    is_problem = status.state in ("stopped", "waiting")
    progress.echo(f"{text}: {status.error}" if status.error else text, err=is_problem)


def _copied(statuses: list[Status]) -> str:
    return ", ".join(f"{status.name}: {_done(status)}" for status in statuses)


def _done(status: Status) -> str:
    snapshot = status.progress.snapshot
    return count_of(status.progress.records, "record") if snapshot is None else f"snapshot of {snapshot.text()}"


def _write_all(writer: Any, statuses: list[Status]) -> None:
    for status in statuses:
        writer.write(status)


def _serve_metrics(address: str, supervisor: Any) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from oncelog.connect.metrics import ConnectMetrics

    try:
        host, port = parse_address(address, default_host=LOOPBACK)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error
    registry = CollectorRegistry()
    registry.register(ConnectMetrics(lambda: supervisor.statuses))
    start_http_server(port, host, registry)


@connect_command.command("check")
@_FILE
@cluster_options
def check_command(access: ClusterAccess, file: Path) -> None:
    """Say what the connectors of FILE need and lack, with the SQL or the command that adds it.

    Changes nothing. The exit code is 1 if something is missing.
    """
    missing = 0
    for kind in _connectors(file, _client(access)):
        click.echo(f"{kind.name}:")
        with access.explained(), progress.doing(f"checking {kind.name}"):
            findings = list(kind.check())
        for finding in findings:
            click.echo(f"  {'ok     ' if finding.is_met else 'missing'}  {finding.text}")
            fix = access.command(*finding.command) if finding.command else finding.fix
            if fix:
                click.echo(f"           {fix}")
            missing += not finding.is_met
    if missing:
        sys.exit(1)


@connect_command.command("status")
@output_option
@cluster_options
def status_command(access: ClusterAccess, output: str) -> None:
    """Show what connectors have reported about themselves, in the topic oncelog-connect."""
    from oncelog.connect.status_topic import read_status

    with access.explained(), progress.doing(f"reading what connectors of {access.bootstrap_servers} have reported"):
        rows = read_status(_client(access))
    if output == "json":
        print_json(rows)
        return
    columns = ["connector", "state", "records", "commits", "dead", "restarts", "lag", "reported"]
    if any(row["snapshot"] for row in rows):
        columns.insert(2, "snapshot")
    now_ms = parsing.now_ms()
    shown = [
        {
            **row,
            "dead": row["dead_letters"],
            "reported": f"{show_duration(max(0, now_ms - row['time_ms']))} ago",
            "snapshot": _snapshot_text(row["snapshot"]),
        }
        for row in rows
    ]
    print_table(
        columns,
        [[row[c] for c in columns] for row in shown],
        empty="no connector has reported anything",
        whole=["reported"],
    )
    for row in rows:
        if row["error"]:
            print_wrapped(f"{row['connector']}: {row['error']}", 2)


def _snapshot_text(row: dict[str, Any] | None) -> str:
    from oncelog.connect.progress import SnapshotProgress

    return "" if row is None else SnapshotProgress(**row).text()


def _client(access: ClusterAccess) -> dict[str, Any]:
    from oncelog.client.config import CLIENT_TABLE

    access.check_reachable()
    return access.properties(CLIENT_TABLE)


def _connectors(file: Path, client: dict[str, Any]) -> list[Kind]:
    from oncelog.connect.config_file import parse_file

    try:
        return parse_file(file.read_text(), client, os.environ)
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
