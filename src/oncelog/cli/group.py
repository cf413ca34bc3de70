"""`oncelog group`: consumer groups, their members, offsets and lag."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli import parsing
from oncelog.cli.completion import complete_groups
from oncelog.cli.connection import Connection, cluster_options, confirm, require_partitions, unknown_name, yes_option
from oncelog.cli.hints import held_back_hint, outside_hint
from oncelog.cli.output import output_option, print_json, print_table
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import Admin
    from oncelog.monitoring.group_progress import GroupProgress, PartitionProgress
    from oncelog.monitoring.offsets import PartitionOffsets

_STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady",
)  # fmt: skip


def _states(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    return parsing.state_names(texts, _STATES)


@click.group("group")
def group_command() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@group_command.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", callback=_states,
              help="Only groups in this state, such as Stable or Empty.")  # fmt: skip
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
        empty = f"there are no groups in state {' or '.join(states)}" if states else "there are no groups"
        print_table(columns, [[row[c] for c in columns] for row in rows], empty=empty)


@group_command.command("describe")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@output_option
@cluster_options
def describe_command(connection: Connection, groups: tuple[str, ...], output: str) -> None:
    """Show members, committed offsets, and how far behind each partition is.

    LAG counts up to END. HELD BACK is the part of it from LAST STABLE on, which an open transaction keeps from
    read_committed readers.
    """
    from oncelog.monitoring.group_progress import group_progress

    with connection.admin() as admin:
        _require_groups(admin, groups)
        found = [group_progress(admin, group) for group in groups]
    if output == "json":
        print_json([_group_row(progress) for progress in found])
        return
    for number, progress in enumerate(found):
        if number:
            click.echo()
        description = progress.description
        click.echo(f"{progress.group}  {description.state}  coordinator {description.coordinator}")
        columns = ["topic", "partition", "committed", "last_stable", "end", "lag", "held_back", "member"]
        rows = [[row[column] for column in columns] for row in map(_progress_row, progress.partitions)]
        names = [column.replace("_", " ") for column in columns]
        print_table(names, rows, empty="no committed offsets and no members")
        for one in progress.partitions:
            if one.offsets is not None and one.offsets.held_back:
                click.echo(held_back_hint(connection, one.partition, one.offsets), err=True)


def _require_groups(admin: Admin, groups: Iterable[str]) -> None:
    known = [listing.group_id for listing in admin.list_groups()]
    for group in groups:
        if group not in known:
            raise click.ClickException(unknown_name("group", group, known))


def _group_row(progress: GroupProgress) -> dict[str, Any]:
    description = progress.description
    return {
        "group": progress.group,
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
        "offsets": [_progress_row(one) for one in progress.partitions],
    }


def _progress_row(progress: PartitionProgress) -> dict[str, Any]:
    offsets, lag = progress.offsets, progress.lag
    return {
        "topic": progress.partition.topic,
        "partition": progress.partition.partition,
        "committed": progress.committed,
        "last_stable": offsets.last_stable if offsets is not None else None,
        "end": offsets.end if offsets is not None else None,
        "lag": lag.total if lag is not None else None,
        "visible_lag": lag.visible if lag is not None else None,
        "held_back": lag.held_back if lag is not None else None,
        "member": progress.member,
    }


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
    """Move the committed offsets of a group that has no members. A group that is not there yet is created.

    An offset that a log does not hold becomes the nearest that it does, which is said.
    """
    from oncelog.monitoring.offsets import partition_offsets

    with connection.admin() as admin:
        partitions = require_partitions(admin, topics)
        before = admin.group_offsets(group)
        offsets = partition_offsets(admin, partitions)
        wanted = _targets(admin, offsets, before, target)
        after = {p: min(max(wanted[p], offsets[p].start), offsets[p].end) for p in partitions}
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
        for p in partitions:
            if wanted[p] != after[p]:
                click.echo(outside_hint(p, offsets[p], wanted[p], after[p]), err=True)
        if not dry_run:
            confirm(f"Set these offsets for group {group}?", yes=yes)
            admin.alter_group_offsets(group, after)
            click.echo(f"offsets of {group} are set", err=True)


def _targets(
    admin: Admin, offsets: dict[TopicPartition, PartitionOffsets], before: dict[TopicPartition, Any], target: str
) -> dict[TopicPartition, int]:
    if target == "earliest":
        return {partition: found.start for partition, found in offsets.items()}
    if target == "latest":
        return {partition: found.end for partition, found in offsets.items()}
    if target[:1] in "+-" and target[1:].isdigit():
        missing = [str(partition) for partition in offsets if partition not in before]
        if missing:
            raise click.ClickException(f"{', '.join(missing)} has no committed offset to start from")
        return {partition: before[partition].offset + int(target) for partition in offsets}
    if target.isdigit() and len(target) <= parsing.OFFSET_DIGITS_MAX:
        return dict.fromkeys(offsets, int(target))
    by_time = admin.list_offsets(dict.fromkeys(offsets, parsing.time_ms(target, int(time.time() * 1000))))
    return {p: by_time[p].offset if by_time[p].offset >= 0 else offsets[p].end for p in offsets}


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
