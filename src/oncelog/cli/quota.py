"""`oncelog quota`: how much of a broker users, client ids and addresses may use."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from oncelog.cli.cluster_access import ClusterAccess, cluster_options, split_assignment
from oncelog.cli.output import output_option, print_json, print_table
from oncelog.security.quotas import CLIENT_ID, IP, USER, entity_of, quota_problem

F = TypeVar("F", bound=Callable[..., Any])
Who = dict[str, str | None]
"""Names by type; None stands for all that have no quota of their own."""


def entity_options(command: F) -> F:
    """Options that name whom quotas are for, passed on as `entity`."""

    @click.option("--user", metavar="USER", help="A user.")
    @click.option("--default-user", is_flag=True, help="All users without a quota of their own.")
    @click.option("--client-id", metavar="ID", help="A client id, of the user if one is given.")
    @click.option("--default-client-id", is_flag=True, help="All client ids without a quota of their own.")
    @click.option("--ip", metavar="ADDRESS", help="An address that connects.")
    @click.option("--default-ip", is_flag=True, help="All addresses without a quota of their own.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        user: str | None,
        client_id: str | None,
        ip: str | None,
        default_user: bool,
        default_client_id: bool,
        default_ip: bool,
        **kwargs: Any,
    ) -> Any:
        entity: Who = {}
        for kind, name, is_default in (
            (USER, user, default_user),
            (CLIENT_ID, client_id, default_client_id),
            (IP, ip, default_ip),
        ):
            if name is not None and is_default:
                raise click.UsageError(f"either --{kind} or --default-{kind}")
            if name is not None or is_default:
                entity[kind] = name
        if IP in entity and len(entity) > 1:
            raise click.UsageError("an address stands alone: leave out users and client ids")
        return command(*args, entity=entity, **kwargs)

    return wrapped  # type: ignore[return-value]  # a function of other parameters, as click wants it


@click.group("quota")
def quota_command() -> None:
    """Limit what users, client ids and addresses use.

    \b
    producer_byte_rate        bytes per second that are written, on each broker
    consumer_byte_rate        bytes per second that are read, on each broker
    request_percentage        time for requests, in percent of one thread
    controller_mutation_rate  partitions per second that are created or deleted
    connection_creation_rate  new connections per second, of an address
    """


@quota_command.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@entity_options
@cluster_options
def set_command(access: ClusterAccess, assignments: tuple[str, ...], entity: Who) -> None:
    """Set quotas; others are not affected."""
    given = dict(split_assignment(text, "QUOTA=NUMBER") for text in assignments)
    quotas = {key: _number(key, text) for key, text in given.items()}
    _check(entity, quotas)
    with access.admin() as admin:
        admin.alter_client_quotas(entity, quotas)
    for key, value in quotas.items():
        click.echo(f"{_shown(entity)}: {key}={value:.12g}")


@quota_command.command("unset")
@click.argument("keys", nargs=-1, required=True, metavar="QUOTA...")
@entity_options
@cluster_options
def unset_command(access: ClusterAccess, keys: tuple[str, ...], entity: Who) -> None:
    """Remove quotas."""
    _check(entity, dict.fromkeys(keys))
    with access.admin() as admin:
        present = {key for each in admin.describe_client_quotas(entity) if each.entity == entity for key in each.quotas}
        absent = [key for key in keys if key not in present]
        if absent:
            raise click.ClickException(f"{_shown(entity)} has no quota {', '.join(absent)}; nothing was removed")
        admin.alter_client_quotas(entity, dict.fromkeys(keys))
    for key in dict.fromkeys(keys):
        click.echo(f"{_shown(entity)}: {key} is removed")


def _number(key: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text)
        if math.isfinite(value):
            return value
    raise click.BadParameter(f"{key}: {text!r} is not a number")


def _check(entity: Who, quotas: Mapping[str, float | None]) -> None:
    if not entity:
        raise click.UsageError("say whom it is for: --user, --client-id or --ip, or --default- and one of them")
    for key, value in quotas.items():
        problem = quota_problem(entity_of(entity.items()), key, value)
        if problem is not None:
            raise click.ClickException(problem)


def _shown(entity: Who) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity.items())


@quota_command.command("list")
@entity_options
@output_option
@cluster_options
def list_command(access: ClusterAccess, entity: Who, output: str) -> None:
    """List quotas, all or those of somebody."""
    with access.admin() as admin:
        found = admin.describe_client_quotas(entity)
    found.sort(key=lambda each: _shown(each.entity))
    rows = [(each.entity, key, value) for each in found for key, value in sorted(each.quotas.items())]
    if output == "json":
        print_json([{"entity": entity, "quota": key, "value": value} for entity, key, value in rows])
    else:
        table = [[_shown(entity), key, f"{value:.12g}"] for entity, key, value in rows]
        print_table(["entity", "quota", "value"], table, empty="there are no such quotas")
