"""`oncelog cluster`: what a cluster is made of."""

from __future__ import annotations

from typing import Any

import click

from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.output import count_of, output_option, print_json, print_table, show_bytes


@click.group("cluster")
def cluster_command() -> None:
    """Look at a cluster as a whole."""


@cluster_command.command("info")
@output_option
@cluster_options
def info_command(access: ClusterAccess, output: str) -> None:
    """Show brokers, features, and how much each broker stores.

    STORED is empty for brokers that do not serve DescribeLogDirs.
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
        "brokers": brokers,
    }
    if output == "json":
        print_json(facts)
        return
    size = f"{count_of(facts['topics'], 'topic')}, {count_of(facts['partitions'], 'partition')}"
    click.echo(f"cluster {facts['cluster_id']}: {size}")
    for name, level in facts["features"].items():
        click.echo(f"  {name}={level}")
    columns = ["broker", "address", "rack", "controller", "leads", "stored"]
    rows = [
        [b["broker"], b["address"], b["rack"], b["controller"], b["leads"],
         None if b["bytes"] is None else show_bytes(b["bytes"])]
        for b in brokers
    ]  # fmt: skip
    print_table(columns, rows)
