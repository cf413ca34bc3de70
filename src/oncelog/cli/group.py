"""`oncelog group`: consumer groups, their members, offsets and lag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import (
    ClusterAccess,
    cluster_options,
    confirm,
    require_partitions,
    unknown_name,
    yes_option,
)
from oncelog.cli.completion import complete_groups
from oncelog.cli.hints import held_back_hint, outside_hint, too_late_hint
from oncelog.cli.output import output_option, print_json, print_rows

if TYPE_CHECKING:
    from oncelog.client.admin import Admin

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
def list_command(access: ClusterAccess, states: tuple[str, ...], output: str) -> None:
    """List the groups."""
    with access.admin() as admin:
        groups = admin.list_groups(states=states)
    rows = [{"group": g.group_id, "state": g.state, "type": g.group_type, "protocol": g.protocol_type} for g in groups]
    empty = f"there are no groups in state {' or '.join(states)}" if states else "there are no groups"
    print_rows(rows, ["group", "state", "type", "protocol"], output, empty=empty)


@group_command.command("describe")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@output_option
@cluster_options
def describe_command(access: ClusterAccess, groups: tuple[str, ...], output: str) -> None:
    """Show members, committed offsets, and how far behind each partition is.

    LAG counts up to END. HELD BACK is the part of it from LAST STABLE on, which an open transaction keeps from
    read_committed readers.
    """
    from oncelog.monitoring.groups import describe_group

    with access.admin() as admin:
        _require_groups(admin, groups)
        found = [describe_group(admin, group) for group in groups]
    if output == "json":
        print_json([group.as_row() for group in found])
        return
    for number, group in enumerate(found):
        if number:
            click.echo()
        description = group.description
        click.echo(f"{description.group_id}  {description.state}  coordinator {description.coordinator}")
        columns = ["topic", "partition", "committed", "last_stable", "end", "lag", "held_back", "member"]
        print_rows([one.as_row() for one in group.partitions], columns, empty="no committed offsets and no members")
        for one in group.partitions:
            if one.offsets is not None and one.offsets.held_back:
                click.echo(held_back_hint(access, one.partition, one.offsets), err=True)


def _require_groups(admin: Admin, groups: Iterable[str]) -> None:
    known = [listing.group_id for listing in admin.list_groups()]
    for group in groups:
        if group not in known:
            raise click.ClickException(unknown_name("group", group, known))


@group_command.command("reset-offsets")
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:PARTITION,...]",
              help="A topic, or some of its partitions; may be repeated.")  # fmt: skip
@click.option("--to", "target", required=True, metavar="earliest|latest|OFFSET|TIME|+N|-N",
              help="An end, an offset, a time such as 2026-01-31T12:00, or a shift by N offsets.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@output_option
@cluster_options
def reset_command(
    access: ClusterAccess,
    group: str,
    topics: tuple[str, ...],
    target: str,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Move the committed offsets of a group that has no members. A group that does not exist is created.

    An offset outside of a log is replaced by its nearest offset, with a message.
    """
    from oncelog.monitoring.offset_reset import plan_reset
    from oncelog.monitoring.positions import PositionKind

    if not group:
        raise click.UsageError("the name of the group is empty")
    position = parsing.position(target, parsing.now_ms())
    with access.admin() as admin:
        if not dry_run and admin.describe_groups([group])[group].members:
            raise click.ClickException(f"group {group} has members, and they keep its offsets: stop them first")
        try:
            plan = plan_reset(admin, group, require_partitions(admin, topics), position)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        rows = [one.as_row() for one in plan]
        print_rows(rows, ["topic", "partition", "before", "after"], output)
        for one in plan:
            if one.wanted != one.after:
                progress.say(outside_hint(one.partition, one.offsets, one.wanted, one.after))
            elif position.kind is PositionKind.TIME_MS and one.after == one.offsets.end:
                progress.say(too_late_hint(one.partition, target, one.after))
        if not dry_run:
            confirm(f"Set these offsets for group {group}?", yes=yes)
            admin.alter_group_offsets(group, {one.partition: one.after for one in plan})
            progress.say(f"offsets of {group} are set")


@group_command.command("delete-offsets")
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:PARTITION,...]",
              help="A topic, or some of its partitions; may be repeated.")  # fmt: skip
@yes_option
@cluster_options
def delete_offsets_command(access: ClusterAccess, group: str, topics: tuple[str, ...], yes: bool) -> None:
    """Make a group forget its offsets of topics that none of its members reads."""
    with access.admin() as admin:
        _require_groups(admin, [group])
        wanted = require_partitions(admin, topics)
        offsets = admin.group_offsets(group)
        committed = [p for p in wanted if p in offsets]
        if not committed:
            raise click.ClickException(f"group {group} has no offsets of {', '.join(topics)}")
        confirm(f"Delete the offsets of {group} on {', '.join(map(str, committed))}?", yes=yes)
        admin.delete_group_offsets(group, committed)
    for partition in committed:
        click.echo(f"{group} has no offset of {partition} any more")


@group_command.command("delete")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@yes_option
@cluster_options
def delete_command(access: ClusterAccess, groups: tuple[str, ...], yes: bool) -> None:
    """Delete groups that have no members, with their committed offsets."""
    with access.admin() as admin:
        _require_groups(admin, groups)
        confirm(f"Delete {', '.join(groups)} with their offsets?", yes=yes)
        for group in groups:
            admin.delete_groups([group])
            progress.echo(f"deleted {group}")
