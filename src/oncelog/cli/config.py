"""`oncelog config`: settings of topics, brokers and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncelog.cli.connection import Connection, cluster_options, require_topics, split_assignment
from oncelog.cli.output import output_option, print_json, print_table

if TYPE_CHECKING:
    from oncelog.client.admin import Admin, ConfigResource

_KIND = click.argument("kind", type=click.Choice(["topic", "broker", "group"]))
_NAME = click.argument("name", metavar="NAME")


@click.group("config")
def config_command() -> None:
    """Show and change settings of topics, brokers and groups.

    NAME is that of a topic or a group, or the number of a broker. Oncelog's own broker has no settings of groups.
    """


def _resource(connection: Connection, admin: Admin, kind: str, name: str) -> ConfigResource:
    from oncelog.client.admin import ConfigResource, ResourceType

    if kind == "topic":
        require_topics(admin, [name])
    if kind == "broker":
        _require_broker(connection, admin, name)
    return ConfigResource(ResourceType[kind.upper()], name)


def _require_broker(connection: Connection, admin: Admin, name: str) -> None:
    """A broker that is not there would be looked for until the time is up, as one that is about to start."""
    if not name.isdigit():
        info = connection.command("cluster", "info")
        raise click.BadParameter(f"{name!r} is not the number of a broker; see '{info}'")
    known = sorted(broker.node_id for broker in admin.describe_cluster().brokers)
    if int(name) not in known:
        raise click.ClickException(f"there is no broker {name}; there is {', '.join(map(str, known))}")


@config_command.command("show")
@_KIND
@_NAME
@click.option("--all", "everything", is_flag=True, help="Also settings that have their default.")
@click.option("--explain", is_flag=True, help="With what each setting is for.")
@output_option
@cluster_options
def show_command(connection: Connection, kind: str, name: str, everything: bool, explain: bool, output: str) -> None:
    """Show the settings that differ from the defaults, or all of them."""
    from oncelog.client.admin import ConfigSource

    with connection.admin() as admin:
        entries = admin.describe_configs(_resource(connection, admin, kind, name), documentation=explain)
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
        columns = ["name", "value", "source", *(["about"] if explain else [])]
        print_table(columns, [[row[c] for c in columns] for row in rows], empty="all settings have their defaults")


@config_command.command("set")
@_KIND
@_NAME
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@cluster_options
def set_command(connection: Connection, kind: str, name: str, assignments: tuple[str, ...]) -> None:
    """Change settings; the others stay as they are."""
    settings = dict(split_assignment(text, "NAME=VALUE") for text in assignments)
    with connection.admin() as admin:
        admin.alter_configs(_resource(connection, admin, kind, name), set=settings)
    for setting, value in settings.items():
        click.echo(f"{kind} {name}: {setting}={value}")


@config_command.command("unset")
@_KIND
@_NAME
@click.argument("settings", nargs=-1, required=True, metavar="NAME...")
@cluster_options
def unset_command(connection: Connection, kind: str, name: str, settings: tuple[str, ...]) -> None:
    """Bring settings back to their defaults."""
    with connection.admin() as admin:
        admin.alter_configs(_resource(connection, admin, kind, name), delete=settings)
    for setting in settings:
        click.echo(f"{kind} {name}: {setting} has its default again")
