"""`oncelog acl`: who may do what."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from oncelog.cli.cluster_access import ClusterAccess, cluster_options, confirm, yes_option
from oncelog.cli.output import count_of, output_option, print_rows
from oncelog.cli.parsing import Choice
from oncelog.cli.stopped import data_dir_option, new_data_dir_options, stopped_broker
from oncelog.security.acl import (
    ANY,
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclAuthorizer,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    parse_super_users,
)

F = TypeVar("F", bound=Callable[..., Any])

_OPERATIONS: Final = {operation.name.lower().replace("_", "-"): operation for operation in Operation}
_PRODUCER: Final = {
    Resource.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {Resource.TOPIC: (Operation.READ, Operation.DESCRIBE), Resource.GROUP: (Operation.READ,)}


class Named(NamedTuple):
    resource: Resource
    name: str


def _operation(name: str) -> Operation:
    return _OPERATIONS[name.lower().replace("_", "-")]


_PRINCIPAL = click.option("--principal", metavar="PRINCIPAL", help="Whom it is about: User:alice; User:* is everybody.")
_HOST = click.option("--host", metavar="ADDRESS", help="Where they connect from.")
_OPERATION = click.option(
    "--operation", "operations", multiple=True, type=Choice(list(_OPERATIONS), case_sensitive=False),
    metavar="OPERATION", help=f"What they do: {', '.join(_OPERATIONS)}. May be repeated.",
)  # fmt: skip


def resource_options(command: F) -> F:
    """Options that name resources, passed on as `resources`."""

    @click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="A topic; * stands for all.")
    @click.option("--group", "groups", metavar="GROUP", multiple=True, help="A consumer group.")
    @click.option("--transactional-id", "transactional_ids", metavar="ID", multiple=True, help="Transactional id.")
    @click.option("--cluster", is_flag=True, help="The cluster as a whole.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        topics: tuple[str, ...],
        groups: tuple[str, ...],
        transactional_ids: tuple[str, ...],
        cluster: bool,
        **kwargs: Any,
    ) -> Any:
        resources = [
            *(Named(Resource.TOPIC, name) for name in topics),
            *(Named(Resource.GROUP, name) for name in groups),
            *(Named(Resource.TRANSACTIONAL_ID, name) for name in transactional_ids),
            *([Named(Resource.CLUSTER, CLUSTER_NAME)] if cluster else []),
        ]
        return command(*args, resources=resources, **kwargs)

    return wrapped  # type: ignore[return-value]  # a function of other parameters, as click wants it


@click.group("acl")
def acl_command() -> None:
    """Say who may do what, and find out why somebody may or may not.

    ACLs count where the broker has an authorizer.class.name.
    """


@acl_command.command("add")
@_PRINCIPAL
@_HOST
@_OPERATION
@click.option("--producer", is_flag=True, help="All that a producer needs of the topics and transactional ids.")
@click.option("--consumer", is_flag=True, help="All that a consumer needs of the topics and groups.")
@click.option("--deny", is_flag=True, help="Forbid instead of allowing. It wins over all that allow.")
@click.option("--prefixed", is_flag=True, help="Names are the beginnings of names.")
@resource_options
@new_data_dir_options
@cluster_options
def add_command(
    access: ClusterAccess,
    principal: str | None,
    host: str | None,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    deny: bool,
    prefixed: bool,
    resources: list[Named],
    data_dir: Path | None,
    node_id: int,
) -> None:
    """Allow or forbid operations on resources."""
    if principal is None:
        raise click.UsageError("say whom it is about: --principal User:alice")
    if not resources:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    sets = [*([_PRODUCER] if producer else []), *([_CONSUMER] if consumer else [])]
    if bool(sets) == bool(operations):
        raise click.UsageError("say what it is about: either --operation, or --producer and --consumer")
    permission = Permission.DENY if deny else Permission.ALLOW
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    wanted = [
        Acl(named.resource, named.name, _pattern_of(named, pattern), principal, host or WILDCARD, operation, permission)
        for named in resources
        for operation in _operations_on(named.resource, operations, sets)
    ]
    for acl in wanted:
        problem = acl.problem() or _host_problem(acl.host)
        if problem is not None:
            raise click.ClickException(problem)
    if data_dir is not None:
        with stopped_broker(data_dir, node_id) as broker:
            broker.change_acls(wanted)
    else:
        with access.admin() as admin:
            admin.create_acls(wanted)
    for acl in wanted:
        click.echo(f"added {acl}")


def _host_problem(host: str) -> str | None:
    """One with a name or a network would be about nobody, also where it denies."""
    if host == WILDCARD:
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"host {host!r} is no address: ACLs are about single addresses, or * for all"
    return None


def _pattern_of(named: Named, pattern: Pattern) -> Pattern:
    return Pattern.LITERAL if named.resource is Resource.CLUSTER else pattern


def _operations_on(
    resource: Resource, names: tuple[str, ...], sets: list[dict[Resource, tuple[Operation, ...]]]
) -> Iterator[Operation]:
    found = [_operation(name) for name in names] + [each for needed in sets for each in needed.get(resource, ())]
    if not found:
        raise click.UsageError(f"neither needs anything of a {resource.name.lower().replace('_', ' ')}")
    yield from dict.fromkeys(found)


def _filters(
    resources: list[Named], principal: str | None, host: str | None, operations: tuple[str, ...], pattern: Pattern
) -> list[AclFilter]:
    return [
        AclFilter(
            ANY if named is None else named.resource,
            None if named is None else named.name,
            pattern,
            principal,
            host,
            ANY if name is None else _operation(name),
        )
        for named in resources or (None,)
        for name in operations or (None,)
    ]


_MATCHING = click.option(
    "--matching", is_flag=True, help="All that are about a resource of the name: also those with a prefix or *."
)


@acl_command.command("list")
@_PRINCIPAL
@_HOST
@_OPERATION
@resource_options
@_MATCHING
@data_dir_option
@output_option
@cluster_options
def list_command(
    access: ClusterAccess,
    principal: str | None,
    host: str | None,
    operations: tuple[str, ...],
    resources: list[Named],
    matching: bool,
    data_dir: Path | None,
    output: str,
) -> None:
    """List ACLs, all or those that the options describe."""
    filters = _filters(resources, principal, host, operations, Pattern.MATCH if matching else Pattern.ANY)
    acls = _find(access, data_dir, filters)
    rows = [
        {
            "principal": acl.principal,
            "permission": acl.permission.name.lower(),
            "operation": acl.operation.name.lower().replace("_", "-"),
            "resource": acl.resource.name.lower().replace("_", "-"),
            "name": acl.name,
            "pattern": acl.pattern.name.lower(),
            "host": acl.host,
        }
        for acl in acls
    ]
    columns = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]
    print_rows(rows, columns, output, empty="there are no such ACLs")


def _find(access: ClusterAccess, data_dir: Path | None, filters: list[AclFilter]) -> list[Acl]:
    if data_dir is not None:
        with stopped_broker(data_dir) as broker:
            found = [acl for acl in broker.acls if any(wanted.matches(acl) for wanted in filters)]
    else:
        with access.admin() as admin:
            found = [acl for wanted in filters for acl in admin.describe_acls(wanted)]
    return sorted(set(found), key=lambda acl: (acl.resource, acl.name, acl.pattern, acl.principal, acl))


@acl_command.command("remove")
@_PRINCIPAL
@_HOST
@_OPERATION
@resource_options
@yes_option
@data_dir_option
@cluster_options
def remove_command(
    access: ClusterAccess,
    principal: str | None,
    host: str | None,
    operations: tuple[str, ...],
    resources: list[Named],
    yes: bool,
    data_dir: Path | None,
) -> None:
    """Remove the ACLs that the options describe."""
    if not (principal or host or operations or resources):
        raise click.UsageError("say which: --principal, --topic, --operation and so on")
    filters = _filters(resources, principal, host, operations, Pattern.ANY)
    acls = _find(access, data_dir, filters)
    if not acls:
        raise click.ClickException("there are no such ACLs")
    for acl in acls:
        click.echo(str(acl))
    confirm(f"Remove {count_of(len(acls), 'ACL')}?", yes=yes)
    if data_dir is not None:
        with stopped_broker(data_dir) as broker:
            broker.change_acls([], acls)
    else:
        with access.admin() as admin:
            admin.delete_acls([AclFilter(*acl) for acl in acls])
    click.echo(f"removed {count_of(len(acls), 'ACL')}")


@acl_command.command("explain")
@click.argument("principal", metavar="PRINCIPAL")
@click.argument("operation", metavar="OPERATION", type=Choice(list(_OPERATIONS), case_sensitive=False))
@resource_options
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where they connect from.")
@cluster_options
def explain_command(access: ClusterAccess, principal: str, operation: str, resources: list[Named], host: str) -> None:
    """Tell whether somebody may do something, and which ACL or setting decides it.

    OPERATION is one of those of 'oncelog acl add'. Ends with status 1 if something is denied.
    """
    if not resources:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    if ":" not in principal:
        raise click.UsageError(f"principal {principal!r} has no type, as User:{principal} has")
    authorizer = _authorizer_of(access)
    denied = 0
    for named in resources:
        decision = authorizer.explain(principal, host, _operation(operation), named.resource, named.name)
        denied += not decision.allowed
        word = "allowed" if decision.allowed else "denied"
        click.echo(f"{word}: {operation} on {named.resource.name} {named.name!r}: {decision.reason}")
    if denied:
        raise click.exceptions.Exit(1)


def _authorizer_of(access: ClusterAccess) -> AclAuthorizer:
    """The rules that a broker has, from what it tells of its settings."""
    from oncelog.client.admin import ConfigResource, ResourceType

    names = ("super.users", "allow.everyone.if.no.acl.found")
    with access.admin() as admin:
        acls = admin.describe_acls()
        node = admin.describe_cluster().brokers[0].node_id
        configs = admin.describe_configs(ConfigResource(ResourceType.BROKER, str(node)), names)
    values = {name: configs[name].value or "" for name in names if name in configs}
    return AclAuthorizer(
        acls,
        super_users=parse_super_users(values.get(names[0], "")),
        allow_everyone_if_no_acl_found=values.get(names[1]) == "true",
    )
