"""`oncelog config`: settings of topics, brokers and groups."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.cluster_access import (
    ClusterAccess,
    cluster_options,
    require_settings,
    require_topics,
    split_assignment,
)
from oncelog.cli.output import fits, output_option, print_json, print_lines, print_rows, print_table
from oncelog.cli.parsing import Choice
from oncelog.cli.stopped import stopped_broker
from oncelog.cli.terminal import columns_of

if TYPE_CHECKING:
    from oncelog.client.admin import Admin, ConfigResource
    from oncelog.cluster.stopped_node import StoppedNode

_KIND = click.argument("kind", type=Choice(["topic", "broker", "group"]))
_NAME = click.argument("name", metavar="NAME")
_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data folder of a broker that does not run, instead of a cluster: for settings that keep clients out.",
)


@click.group("config")
def config_command() -> None:
    """Show and change settings of topics, brokers and groups.

    NAME is the name of a topic or group, or the id of a broker. Oncelog's broker has no settings of groups.
    """


@contextmanager
def _stopped(data_dir: Path, kind: str) -> Iterator[StoppedNode]:
    if kind == "group":
        raise click.UsageError("a data folder of Oncelog has no settings of groups")
    with stopped_broker(data_dir) as broker:
        yield broker


def _resource(access: ClusterAccess, admin: Admin, kind: str, name: str) -> ConfigResource:
    from oncelog.client.admin import ConfigResource, ResourceType

    if kind == "topic":
        require_topics(admin, [name])
    if kind == "broker":
        _require_broker(access, admin, name)
    return ConfigResource(ResourceType[kind.upper()], name)


def _require_broker(access: ClusterAccess, admin: Admin, name: str) -> None:
    """Refuse an unknown broker at once: the client would wait for it until the time-out."""
    if not name.isdigit():
        info = access.command("cluster", "info")
        raise click.BadParameter(f"{name!r} is not the number of a broker; see '{info}'")
    known = sorted(broker.node_id for broker in admin.describe_cluster().brokers)
    if int(name) not in known:
        raise click.ClickException(f"there is no broker {name}; there is {', '.join(map(str, known))}")


@config_command.command("show")
@_KIND
@_NAME
@click.option("--all", "everything", is_flag=True, help="Include settings that have their default.")
@click.option("--explain", is_flag=True, help="Describe each setting.")
@_DATA_DIR
@output_option
@cluster_options
def show_command(
    access: ClusterAccess, kind: str, name: str, everything: bool, explain: bool, data_dir: Path | None, output: str
) -> None:
    """Show the settings that differ from the defaults, or all of them.

    With --data-dir those that were changed while the broker ran.
    """
    from oncelog.client.admin import ConfigSource

    if data_dir is not None:
        if everything or explain:
            raise click.UsageError("--data-dir shows what was changed; --all and --explain ask a broker that runs")
        _show_stored(data_dir, kind, name, output)
        return
    with access.admin() as admin:
        entries = admin.describe_configs(_resource(access, admin, kind, name), documentation=explain)
    shown = [entry for _, entry in sorted(entries.items()) if everything or not entry.is_default]
    known = {source.value: source.name.lower() for source in ConfigSource}
    rows = [
        {
            "name": entry.name,
            "value": entry.value,
            "source": known.get(entry.source, str(entry.source)),
            "read_only": entry.is_read_only,
            **({"about": entry.documentation} if explain else {}),
        }
        for entry in shown
    ]
    if output == "json":
        print_json(rows)
    else:
        _print_settings(rows, explain=explain)


def _print_settings(rows: list[dict[str, Any]], *, explain: bool) -> None:
    """A table, or lines as in a file where it has no room: a name that is shortened is of no use."""
    columns = ["name", "value", "source", *(["about"] if explain else [])]
    cells = [[row[column] for column in columns] for row in rows]
    if fits(columns, cells):
        print_table(columns, cells, empty="all settings have their defaults")
    else:
        print_lines(line for row in rows for line in _setting_lines(row))


def _setting_lines(row: dict[str, Any]) -> Iterator[str]:
    source = "" if row["source"] == "default" else f"  ({row['source']})"
    yield f"{row['name']}={row['value'] or ''}{source}"
    if "about" in row:
        width = columns_of(sys.stdout) or sys.maxsize
        yield from textwrap.wrap(row["about"] or "", width, initial_indent="    ", subsequent_indent="    ")


def _show_stored(data_dir: Path, kind: str, name: str, output: str) -> None:
    with _stopped(data_dir, kind) as broker:
        stored = broker.settings(kind, name)
    rows = [
        {"name": setting, "value": value, "source": source.name.lower()}
        for source, configs in stored.items()
        for setting, value in sorted(configs.items())
    ]
    print_rows(rows, ["name", "value", "source"], output, empty="nothing was changed")


@config_command.command("set")
@_KIND
@_NAME
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@_DATA_DIR
@cluster_options
def set_command(
    access: ClusterAccess, kind: str, name: str, assignments: tuple[str, ...], data_dir: Path | None
) -> None:
    """Change settings; others are not affected."""
    settings = dict(split_assignment(text, "NAME=VALUE") for text in assignments)
    if data_dir is not None:
        with _stopped(data_dir, kind) as broker:
            broker.change(kind, name, settings)
    else:
        with access.admin() as admin:
            admin.alter_configs(_resource(access, admin, kind, name), set=settings)
    for setting, value in settings.items():
        click.echo(f"{kind} {name}: {setting}={value}")


@config_command.command("unset")
@_KIND
@_NAME
@click.argument("settings", nargs=-1, required=True, metavar="NAME...")
@_DATA_DIR
@cluster_options
def unset_command(
    access: ClusterAccess, kind: str, name: str, settings: tuple[str, ...], data_dir: Path | None
) -> None:
    """Reset settings to their defaults."""
    if data_dir is not None:
        with _stopped(data_dir, kind) as broker:
            broker.remove(kind, name, settings)
    else:
        with access.admin() as admin:
            resource = _resource(access, admin, kind, name)
            require_settings(admin, resource, settings)
            admin.alter_configs(resource, delete=settings)
    for setting in settings:
        click.echo(f"{kind} {name}: {setting} has its default again")
