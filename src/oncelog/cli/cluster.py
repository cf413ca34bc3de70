"""`oncelog cluster`: what a cluster is made of, and changes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oncelog.cli import progress
from oncelog.cli.cluster_access import ClusterAccess, cluster_options, confirm, require_partitions, yes_option
from oncelog.cli.cluster_up import up_command
from oncelog.cli.completion import complete_topics
from oncelog.cli.output import count_of, output_option, print_json, print_rows, print_table, print_wrapped, show_bytes
from oncelog.cli.parsing import IntRange, NewPath


@click.group("cluster")
def cluster_command() -> None:
    """Run a cluster on this machine, look at one as a whole, move partitions between its brokers."""


cluster_command.add_command(up_command)


@cluster_command.command("describe")
@output_option
@cluster_options
def describe_command(access: ClusterAccess, output: str) -> None:
    """Show controllers, brokers with their replicas, and partitions that need attention.

    OUT OF SYNC counts replicas that are behind or away. BEHIND is how many records of the metadata log a broker has not
    fetched yet. A broker without an address is not there.
    """
    from oncelog.monitoring.brokers import quorum, replica_counts

    with access.admin() as admin:
        described = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        controllers = quorum(admin)
    present = {broker.node_id: broker for broker in described.brokers}
    counts = replica_counts(topics.values())
    ends = {replica.node_id: replica.end_offset for replica in controllers.observers} if controllers is not None else {}
    brokers = []
    for node in sorted(present.keys() | counts.keys()):
        broker, found = present.get(node), counts.get(node)
        brokers.append(
            {
                "broker": node,
                "address": None if broker is None else str(broker.address),
                "rack": None if broker is None else broker.rack,
                "leads": 0 if found is None else found.leads,
                "keeps": 0 if found is None else found.keeps,
                "out_of_sync": 0 if found is None else found.out_of_sync,
                "behind": controllers.high_watermark - ends[node] if controllers is not None and node in ends else None,
            }
        )
    partitions = [(f"{info.name}-{one.partition}", one) for info in sorted(topics.values()) for one in info.partitions]
    facts: dict[str, Any] = {
        "cluster_id": described.cluster_id,
        "features": dict(sorted(described.features.items())),
        "quorum": None if controllers is None else {
            "leader": controllers.leader_id,
            "epoch": controllers.leader_epoch,
            "high_watermark": controllers.high_watermark,
            "voters": [voter.node_id for voter in controllers.voters],
        },
        "brokers": brokers,
        "without_leader": [name for name, one in partitions if one.leader < 0],
        "under_replicated": [name for name, one in partitions if len(one.in_sync_replicas) < len(one.replicas)],
    }  # fmt: skip
    if output == "json":
        print_json(facts)
        return
    _print_description(facts)


def _print_description(facts: dict[str, Any]) -> None:
    click.echo(f"cluster {facts['cluster_id']}")
    for name, level in facts["features"].items():
        click.echo(f"  {name}={level}")
    controllers = facts["quorum"]
    if controllers is not None:
        voters = ", ".join(map(str, controllers["voters"]))
        active = f"controller {controllers['leader']} is active in epoch {controllers['epoch']}, of {voters}"
        nobody = "no controller is active: no leader is replaced, and nothing can be made or changed"
        click.echo(nobody if controllers["leader"] < 0 else active)
    columns = ["broker", "address", "rack", "leads", "keeps", "out_of_sync", "behind"]
    print_rows(facts["brokers"], columns)
    for key, text in (("without_leader", "without a leader"), ("under_replicated", "with replicas out of sync")):
        if facts[key]:
            print_wrapped(f"partitions {text}: {', '.join(facts[key])}", 2)


@cluster_command.command("info")
@output_option
@cluster_options
def info_command(access: ClusterAccess, output: str) -> None:
    """Show brokers, features, and how much each broker stores.

    STORED is empty for brokers that do not serve DescribeLogDirs. CONTROLLER is the broker that clients take for it:
    where controllers are processes of their own, any one. 'oncelog cluster describe' names the active controller.
    """
    from oncelog.monitoring.brokers import broker_states, stored_bytes

    with access.admin() as admin:
        described = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        brokers = [one.as_row() for one in broker_states(described, topics.values(), stored_bytes(admin))]
    user_topics = [topic for topic in topics.values() if not topic.is_internal]
    facts: dict[str, Any] = {
        "cluster_id": described.cluster_id,
        "features": dict(sorted(described.features.items())),
        "topics": len(user_topics),
        "partitions": sum(len(topic.partitions) for topic in user_topics),
        "internal_partitions": sum(len(topic.partitions) for topic in topics.values() if topic.is_internal),
        "brokers": brokers,
    }
    if output == "json":
        print_json(facts)
        return
    size = f"{count_of(facts['topics'], 'topic')}, {count_of(facts['partitions'], 'partition')}"
    if internal := facts["internal_partitions"]:
        size += f", {internal} more of internal topics"
    print_wrapped(f"cluster {facts['cluster_id']}: {size}", 2)
    for name, level in facts["features"].items():
        click.echo(f"  {name}={level}")
    columns = ["broker", "address", "rack", "controller", "leads", "stored"]
    rows = [
        [b["broker"], b["address"], b["rack"], b["controller"], b["leads"],
         None if b["bytes"] is None else show_bytes(b["bytes"])]
        for b in brokers
    ]  # fmt: skip
    print_table(columns, rows)


_PARTITIONS = click.argument(
    "partitions", nargs=-1, metavar="[TOPIC[:PARTITION,...]]...", shell_complete=complete_topics
)


@cluster_command.command("reassign")
@_PARTITIONS
@click.option("--replicas", "nodes", metavar="NODE,...", help="The brokers to move to, the preferred leader first.")
@click.option("--cancel", is_flag=True, help="Let partitions that are being moved stay where they were.")
@output_option
@cluster_options
def reassign_command(
    access: ClusterAccess, partitions: tuple[str, ...], nodes: str | None, cancel: bool, output: str
) -> None:
    """Move partitions to other brokers; without partitions, show those that are being moved.

    Readers and writers go on. A partition has moved when its new replicas have everything: then the others delete it.
    """
    if bool(partitions) != (cancel or nodes is not None) or (cancel and nodes is not None):
        raise click.UsageError("name partitions with either --replicas or --cancel")
    with access.admin() as admin:
        if partitions:
            wanted = require_partitions(admin, partitions)
            target = None if nodes is None else _nodes(nodes)
            admin.reassign_partitions(dict.fromkeys(wanted, target))
            for partition in wanted:
                progress.say(f"{partition} stays" if target is None else f"{partition} moves to {nodes}")
            return
        moving = admin.list_reassignments()
    rows = [
        {
            "partition": str(partition),
            "replicas": list(found.replicas),
            "adding": list(found.adding),
            "removing": list(found.removing),
        }
        for partition, found in sorted(moving.items())
    ]
    print_rows(rows, ["partition", "replicas", "adding", "removing"], output, empty="no partition is being moved")


def _nodes(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise click.BadParameter(f"{text!r}: write ids of brokers, such as 1,2", param_hint="--replicas")
    return [int(number) for number in numbers]


@cluster_command.command("elect")
@_PARTITIONS
@click.option("--unclean", is_flag=True, help="Let a replica lead that is not in sync. Records may be lost.")
@yes_option
@cluster_options
def elect_command(access: ClusterAccess, partitions: tuple[str, ...], unclean: bool, yes: bool) -> None:
    """Make the preferred replicas leaders again, of all partitions unless some are named.

    The preferred one is the first of a partition's replicas. It must be in sync.
    """
    with access.admin() as admin:
        wanted = require_partitions(admin, partitions) if partitions else None
        if unclean:
            which = "all partitions" if wanted is None else ", ".join(map(str, wanted))
            confirm(f"Elect leaders of {which}, even if acknowledged records are lost?", yes=yes)
        admin.elect_leaders(wanted, unclean=unclean)
    click.echo("leaders are elected")


@cluster_command.command("unregister")
@click.argument("node", type=IntRange(min=0), metavar="NODE")
@yes_option
@cluster_options
def unregister_command(access: ClusterAccess, node: int, yes: bool) -> None:
    """Have the cluster forget a broker that is stopped for good.

    Move its partitions away before that, with oncelog cluster reassign.
    """
    from oncelog.monitoring.brokers import replica_counts

    with access.admin() as admin:
        if any(broker.node_id == node for broker in admin.describe_cluster().brokers):
            raise click.ClickException(f"broker {node} is running: stop it first")
        kept = replica_counts(admin.list_topics(internal=True).values()).get(node)
        if kept is not None:
            progress.say(f"broker {node} still has replicas of {count_of(kept.keeps, 'partition')}")
        confirm(f"Unregister broker {node}?", yes=yes)
        admin.unregister_broker(node)
    click.echo(f"broker {node} is unregistered")


@cluster_command.command("split")
@click.option("--data-dir", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The data folder of a node of its own that is stopped.")  # fmt: skip
@click.option("--controller-dir", required=True, type=NewPath(file_okay=False, path_type=Path),
              help="A new folder, for the controller.")  # fmt: skip
@click.option("--controller-id", type=IntRange(min=0), default=100, show_default=True,
              help="The node.id of the controller.")  # fmt: skip
def split_command(data_dir: Path, controller_dir: Path, controller_id: int) -> None:
    """Make a cluster of a node of its own, so that other brokers can join it.

    Its metadata goes into the folder of a controller, and its folder becomes one of a broker. Start the controller with
    process.roles=controller, then the broker with process.roles=broker, where clients know it.
    """
    from oncelog.cluster.node_split import split_node
    from oncelog.storage.log_dir import LogDirError

    try:
        meta = split_node(data_dir, controller_dir, controller_id)
    except LogDirError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{controller_dir}: process.roles=controller, node.id={controller_id}")
    click.echo(f"{data_dir}: process.roles=broker, node.id={meta.node_id}")
    click.echo(f"both: cluster.id={meta.cluster_id}")
