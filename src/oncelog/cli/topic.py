"""`oncelog topic`: list, create, describe, alter, delete, delete records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import (
    ClusterAccess,
    cluster_options,
    confirm,
    matching_topics,
    require_partitions,
    require_settings,
    require_topics,
    split_assignment,
    yes_option,
)
from oncelog.cli.completion import complete_topics
from oncelog.cli.hints import outside_hint
from oncelog.cli.output import output_option, print_json, print_rows
from oncelog.cli.parsing import IntRange
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import ConfigEntry
    from oncelog.monitoring.topics import Topic

_NEW_NAMES = click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
_NAMES = click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)


@click.group("topic")
def topic_command() -> None:
    """List, create, describe, change and delete topics."""


@topic_command.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics, such as __transaction_state.")
@output_option
@cluster_options
def list_command(access: ClusterAccess, internal: bool, output: str) -> None:
    """List the topics."""
    from oncelog.monitoring.topics import replication_factor

    with access.admin() as admin:
        topics = admin.list_topics(internal=internal)
    rows = [
        {
            "topic": info.name,
            "partitions": len(info.partitions),
            "replicas": replication_factor(info),
            "internal": info.is_internal,
        }
        for info in sorted(topics.values())
    ]
    print_rows(rows, ["topic", "partitions", "replicas"], output, empty="there are no topics")


@topic_command.command("create")
@_NEW_NAMES
@click.option(
    "-p",
    "--partitions",
    type=IntRange(min=1),
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option("-r", "--replication-factor", type=IntRange(min=1), help="Replicas of each partition.")
@click.option("--topic-config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing for topics that exist.")
@output_option
@cluster_options
def create_command(
    access: ClusterAccess,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output: str,
) -> None:
    """Create topics."""
    from oncelog.client.admin import NewTopic

    settings = dict(split_assignment(text, "--topic-config") for text in configs)
    topics = [NewTopic(name, partitions or -1, replication_factor or -1, settings) for name in names]
    with access.admin() as admin:
        created = admin.create_topics(topics, if_not_exists=if_not_exists)
    if output == "json":
        print_json([{"topic": name, "created": name in created} for name in names])
        return
    for name in names:
        click.echo(f"created {name}" if name in created else f"{name} exists already")


@topic_command.command("describe")
@_NAMES
@output_option
@cluster_options
def describe_command(access: ClusterAccess, names: tuple[str, ...], output: str) -> None:
    """Show partitions with their leaders and offsets, and the settings that differ from the defaults.

    A name may be a pattern with *, ? or [...].

    LAST STABLE is where read_committed readers stop: below END only while a transaction is open. ELR are replicas that
    are not in sync but have everything that is committed, OFFLINE those whose broker is away; both are shown where
    there are some.
    """
    from oncelog.client.admin import ConfigResource, ResourceType
    from oncelog.monitoring.topics import describe_topics, eligible_leaders

    with access.admin() as admin:
        topics = describe_topics(admin, matching_topics(admin, names).values())
        eligible = eligible_leaders(admin, [topic.info.name for topic in topics])
        settings = [admin.describe_configs(ConfigResource(ResourceType.TOPIC, one.info.name)) for one in topics]
    described = [_description(topic, entries, eligible) for topic, entries in zip(topics, settings, strict=True)]
    if output == "json":
        print_json(described)
        return
    for number, topic in enumerate(described):
        if number:
            click.echo()
        click.echo(f"{topic['topic']}  id {topic['id']}")
        for name, value in topic["settings"].items():
            click.echo(f"  {name}={value}")
        columns = ["partition", "leader", "replicas", "isr", "elr", "offline", "start", "end", "last_stable"]
        for column in ("elr", "offline"):
            if not any(partition[column] for partition in topic["partitions"]):
                columns.remove(column)
        print_rows(topic["partitions"], columns)
        if topic["under_min_isr"]:
            numbers = ", ".join(map(str, topic["under_min_isr"]))
            click.echo(f"fewer replicas are in sync than min.insync.replicas: partitions {numbers}")


def _description(
    topic: Topic, entries: Mapping[str, ConfigEntry], eligible: Mapping[TopicPartition, tuple[int, ...]]
) -> dict[str, Any]:
    from oncelog.monitoring.topics import changed_settings, under_min_isr

    row = topic.as_row()
    for partition in row["partitions"]:
        partition["elr"] = list(eligible.get(TopicPartition(topic.info.name, partition["partition"]), ()))
    minimum = entries.get("min.insync.replicas")
    least = int(minimum.value) if minimum is not None and minimum.value is not None else 1
    return {**row, "under_min_isr": under_min_isr(topic.info, least), "settings": changed_settings(entries)}


@topic_command.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("-p", "--partitions", type=IntRange(min=1), help="Increase to this number of partitions.")
@click.option("--topic-config", "configs", metavar="NAME=VALUE", multiple=True, help="Change a setting.")
@click.option("--unset", "unset", metavar="NAME", multiple=True, help="Reset a setting to its default.")
@cluster_options
def alter_command(
    access: ClusterAccess, name: str, partitions: int | None, configs: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    """Add partitions to a topic, or change its settings.

    New partitions change which partition a key belongs to.
    """
    from oncelog.client.admin import ConfigResource, ResourceType

    settings = dict(split_assignment(text, "--topic-config") for text in configs)
    if partitions is None and not settings and not unset:
        raise click.UsageError("say what to change: --partitions, --topic-config or --unset")
    with access.admin() as admin:
        require_topics(admin, [name])
        resource = ConfigResource(ResourceType.TOPIC, name)
        if unset:
            require_settings(admin, resource, unset)
        if partitions is not None:
            admin.create_partitions({name: partitions})
            progress.echo(f"{name} has {partitions} partitions now")
        if settings or unset:
            admin.alter_configs(resource, set=settings, delete=unset)
            for setting, value in settings.items():
                progress.echo(f"{name}: {setting}={value}")
            for setting in unset:
                progress.echo(f"{name}: {setting} has its default again")


@topic_command.command("delete")
@_NAMES
@yes_option
@cluster_options
def delete_command(access: ClusterAccess, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records.

    A name may be a pattern with *, ? or [...]: the question names the topics that match.
    """
    with access.admin() as admin:
        found = list(matching_topics(admin, names))
        confirm(f"Delete {', '.join(found)} with all records?", yes=yes)
        admin.delete_topics(found)
    for name in found:
        click.echo(f"deleted {name}")


@topic_command.command("delete-records")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...", shell_complete=complete_topics)
@click.option("--before", required=True, metavar="latest|OFFSET|TIME",
              help="Delete what is before this: the end, an offset, or a time as 2026-01-31T12:00 or -7d.")  # fmt: skip
@yes_option
@output_option
@cluster_options
def delete_records_command(access: ClusterAccess, topics: tuple[str, ...], before: str, yes: bool, output: str) -> None:
    """Delete the oldest records of topics, up to an offset or a time. The topics stay.

    Records of a time are those before the first one that has it or a later one.
    """
    from oncelog.monitoring.offsets import partition_offsets
    from oncelog.monitoring.positions import PositionKind, find_offsets

    position = parsing.position(before, parsing.now_ms())
    if position.kind is PositionKind.RELATIVE:
        raise click.BadParameter(f"{before!r}: write latest, an offset or a time", param_hint="--before")
    with access.admin() as admin:
        offsets = partition_offsets(admin, require_partitions(admin, topics))
        ends = {partition: found.end for partition, found in offsets.items()}
        wanted = find_offsets(admin, position, offsets, ends)
        nearest = {p: found.nearest(wanted[p]) for p, found in offsets.items()}
        rows = [
            {
                "topic": p.topic,
                "partition": p.partition,
                "start": found.start,
                "new_start": nearest[p],
                "end": found.end,
            }
            for p, found in offsets.items()
        ]
        for partition, found in offsets.items():
            if nearest[partition] != wanted[partition]:
                progress.say(outside_hint(partition, found, wanted[partition], nearest[partition]))
        print_rows(rows, ["topic", "partition", "start", "new_start", "end"], output)
        if all(nearest[partition] == found.start for partition, found in offsets.items()):
            click.echo("there is nothing to delete", err=True)
            return
        confirm("Delete everything before the new starts?", yes=yes)
        admin.delete_records(nearest)
    click.echo("the records are deleted", err=True)
