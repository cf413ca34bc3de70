"""`oncelog group`: consumer groups, their members, offsets and lag."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli import parsing
from oncelog.cli.completion import complete_groups
from oncelog.cli.connection import Connection, cluster_options, confirm, require_partitions, unknown_name, yes_option
from oncelog.cli.output import output_option, print_json, print_table
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import Admin


@click.group("group")
def group_command() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@group_command.command("list")
@click.option("--state", "states", multiple=True, help="Only groups in this state, such as Stable or Empty.")
@output_option
@cluster_options
def list_command(connection: Connection, states: tuple[str, ...], output: str) -> None:
    """List the groups."""
    with connection.admin() as admin:
        groups = admin.list_groups(states=states)
    rows = [{"group": g.group_id, "state": g.state, "type": g.group_type, "protocol": g.protocol_type} for g in groups]
    if output == "json":
        print_json(rows)
    else:
        columns = ["group", "state", "type", "protocol"]
        print_table(columns, [[row[c] for c in columns] for row in rows], empty="there are no groups")


@group_command.command("describe")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@output_option
@cluster_options
def describe_command(connection: Connection, groups: tuple[str, ...], output: str) -> None:
    """Show members, committed offsets, and how far behind each partition is.

    END is the last stable offset, and LAG counts up to it: what a read_committed reader could still get now.
    """
    with connection.admin() as admin:
        _require_groups(admin, groups)
        described = [_describe(admin, group) for group in groups]
    if output == "json":
        print_json(described)
        return
    for number, group in enumerate(described):
        if number:
            click.echo()
        click.echo(f"{group['group']}  {group['state']}  coordinator {group['coordinator']}")
        columns = ["topic", "partition", "committed", "end", "lag", "member"]
        rows = [[row[c] for c in columns] for row in group["offsets"]]
        print_table(columns, rows, empty="no committed offsets and no members")


def _require_groups(admin: Admin, groups: Iterable[str]) -> None:
    known = [listing.group_id for listing in admin.list_groups()]
    for group in groups:
        if group not in known:
            raise click.ClickException(unknown_name("group", group, known))


def _describe(admin: Admin, group: str) -> dict[str, Any]:
    description = admin.describe_groups([group])[group]
    committed = admin.group_offsets(group)
    owners = {
        partition: f"{member.client_id or member.member_id}@{member.host}"
        for member in description.members
        for partition in member.partitions
    }
    partitions = sorted(committed.keys() | owners.keys())
    ends = _end_offsets(admin, partitions)
    return {
        "group": group,
        "state": description.state,
        "coordinator": description.coordinator,
        "assignor": description.protocol,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [str(partition) for partition in sorted(member.partitions)],
            }
            for member in description.members
        ],
        "offsets": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed": committed[partition].offset if partition in committed else None,
                "end": ends.get(partition),
                "lag": ends[partition] - committed[partition].offset
                if partition in committed and partition in ends
                else None,
                "member": owners.get(partition),
            }
            for partition in partitions
        ],
    }


def _end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Of those whose topics still exist."""
    from oncelog.client.admin import OffsetSpec
    from oncelog.client.visibility import IsolationLevel

    topics = admin.list_topics(internal=True)
    there = [p for p in partitions if p.topic in topics and p.partition < len(topics[p.topic].partitions)]
    if not there:
        return {}
    found = admin.list_offsets(dict.fromkeys(there, OffsetSpec.LATEST), isolation=IsolationLevel.READ_COMMITTED)
    return {partition: result.offset for partition, result in found.items()}


@group_command.command("reset-offsets")
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:PARTITION,...]",
              help="Of which topic, or which of its partitions; may be repeated.")  # fmt: skip
@click.option("--to", "target", required=True, metavar="earliest|latest|OFFSET|TIME|+N|-N",
              help="An end, an offset, a time such as 2026-01-31T12:00, or so many offsets on or back.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@output_option
@cluster_options
def reset_command(
    connection: Connection,
    group: str,
    topics: tuple[str, ...],
    target: str,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Move the committed offsets of a group that has no members. A group that is not there yet is created."""
    with connection.admin() as admin:
        partitions = require_partitions(admin, topics)
        before = admin.group_offsets(group)
        after = _targets(admin, partitions, before, target)
        rows = [
            {
                "topic": p.topic,
                "partition": p.partition,
                "before": before[p].offset if p in before else None,
                "after": after[p],
            }
            for p in partitions
        ]
        if output == "json":
            print_json(rows)
        else:
            columns = ["topic", "partition", "before", "after"]
            print_table(columns, [[row[c] for c in columns] for row in rows])
        if not dry_run:
            confirm(f"Set these offsets for group {group}?", yes=yes)
            admin.alter_group_offsets(group, after)
            click.echo(f"offsets of {group} are set", err=True)


def _targets(
    admin: Admin, partitions: list[TopicPartition], before: dict[TopicPartition, Any], target: str
) -> dict[TopicPartition, int]:
    """Offsets, never outside of what the logs hold."""
    from oncelog.client.admin import OffsetSpec

    starts = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    if target in ("earliest", "latest"):
        found = starts if target == "earliest" else ends
        return {partition: found[partition].offset for partition in partitions}
    if target[:1] in "+-" and target[1:].isdigit():
        missing = [str(p) for p in partitions if p not in before]
        if missing:
            raise click.ClickException(f"{', '.join(missing)} has no committed offset to start from")
        wanted = {partition: before[partition].offset + int(target) for partition in partitions}
    elif target.isdigit() and len(target) <= 12:
        wanted = dict.fromkeys(partitions, int(target))
    else:
        moment = parsing.time_ms(target, int(time.time() * 1000))
        by_time = admin.list_offsets(dict.fromkeys(partitions, moment))
        wanted = {p: by_time[p].offset if by_time[p].offset >= 0 else ends[p].offset for p in partitions}
    return {p: min(max(wanted[p], starts[p].offset), ends[p].offset) for p in partitions}


@group_command.command("delete")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@yes_option
@cluster_options
def delete_command(connection: Connection, groups: tuple[str, ...], yes: bool) -> None:
    """Delete groups that have no members, with their committed offsets."""
    with connection.admin() as admin:
        _require_groups(admin, groups)
        confirm(f"Delete {', '.join(groups)} with their offsets?", yes=yes)
        admin.delete_groups(groups)
    for group in groups:
        click.echo(f"deleted {group}")
