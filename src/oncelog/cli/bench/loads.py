"""Commands that put a load on a cluster."""

from __future__ import annotations

from dataclasses import replace

import click
from click.core import ParameterSource

from oncelog.bench.workload import Workload
from oncelog.cli.bench.options import (
    Setup,
    partitions_option,
    records_option,
    seconds_option,
    setup_options,
    size_option,
)
from oncelog.cli.parsing import Choice, FloatRange, IntRange
from oncelog.core.codec import PRODUCER_CODECS


@click.command("produce")
@records_option(1_000_000)
@size_option()
@click.option("--throughput", default=-1, show_default=True, type=IntRange(-1),
              help="Records per second that are offered; -1 for no limit.")  # fmt: skip
@click.option("--acks", default="all", show_default=True, type=Choice(["0", "1", "all"]))
@click.option("--compression", default="none", show_default=True, type=Choice(tuple(PRODUCER_CODECS)))
@click.option("--batch-size", default=262_144, show_default=True, type=IntRange(1), help="Bytes of a batch.")
@click.option("--linger-ms", default=5.0, show_default=True, type=FloatRange(0),
              help="How long a batch waits for more.")  # fmt: skip
@click.option("--idempotence/--no-idempotence", default=None, help="[default: on with acks=all]")
@partitions_option
@setup_options(rounds=3, warm_ups=1)
def produce_command(
    setup: Setup,
    records: int,
    size_bytes: int,
    throughput: int,
    acks: str,
    compression: str,
    batch_size: int,
    linger_ms: float,
    idempotence: bool | None,
    partitions: int,
) -> None:
    """Produce records and read them back, as kafka-producer-perf-test does and a little more.

    Each round writes to a new topic, which is deleted afterwards. The log must end with exactly the records that were
    sent; those of the last round are read back and compared.
    """
    is_idempotent = acks == "all" if idempotence is None else idempotence
    if is_idempotent and acks != "all":
        raise click.BadParameter("an idempotent producer needs --acks all", param_hint="--idempotence")
    setup.measure(
        Workload(
            "produce", "produce", f"{records:,} records of {size_bytes:,} B", records, size_bytes, partitions,
            batch_size, linger_ms, compression, acks, is_idempotent, max(0, throughput),
        )
    )  # fmt: skip


@click.command("consume")
@records_option(1_000_000)
@size_option()
@click.option("--isolation", default="read_committed", show_default=True,
              type=Choice(["read_committed", "read_uncommitted"]))  # fmt: skip
@click.option("--aborted", "aborted_percent", type=IntRange(0, 100), metavar="PERCENT",
              help="Fill the topic with transactions of 1,000 records, so many of them aborted.")  # fmt: skip
@partitions_option
@setup_options(rounds=3, warm_ups=1)
def consume_command(
    setup: Setup, records: int, size_bytes: int, isolation: str, aborted_percent: int | None, partitions: int
) -> None:
    """Read a topic from its beginning to its end, as kafka-consumer-perf-test does.

    The topic is filled before and deleted afterwards. Every record must arrive once, with the content that was sent.
    """
    in_transactions = aborted_percent is not None
    per_transaction = min(1000, records)
    setup.measure(
        Workload(
            "consume", "consume", f"{records:,} records of {size_bytes:,} B, {isolation}", records, size_bytes,
            partitions, isolation=isolation, transactions=records // per_transaction if in_transactions else 0,
            per_transaction=per_transaction, aborted_percent=aborted_percent or 0,
        )
    )  # fmt: skip


@click.command("latency")
@click.option("--rate", default=1000, show_default=True, type=IntRange(1), help="Records per second.")
@seconds_option(10.0)
@size_option()
@click.option("--acks", default="all", show_default=True, type=Choice(["0", "1", "all"]))
@partitions_option
@setup_options(rounds=3, warm_ups=1)
def latency_command(setup: Setup, rate: int, seconds: float, size_bytes: int, acks: str, partitions: int) -> None:
    """Time records from the producer's call to the consumer's hands, at a fixed rate."""
    setup.measure(
        Workload(
            "latency", "latency", f"{rate:,} records/s of {size_bytes:,} B", size_bytes=size_bytes,
            partitions=partitions, linger_ms=0, acks=acks, idempotence=acks == "all", rate_per_s=rate,
            seconds=seconds,
        )
    )  # fmt: skip


@click.command("transactions")
@click.option("--transactions", default=1000, show_default=True, type=IntRange(1), help="Transactions per round.")
@click.option("--records-per-transaction", default=1, show_default=True, type=IntRange(1))
@click.option("--commit-interval", "interval_ms", type=IntRange(1), metavar="MS",
              help="Send records without a pause and commit so often, instead of by count.")  # fmt: skip
@seconds_option(5.0, "Length of a round with --commit-interval.")
@click.option("--producers", default=1, show_default=True, type=IntRange(1), help="Producers at the same time.")
@click.option("--aborted", "aborted_percent", default=0, show_default=True, type=IntRange(0, 100),
              metavar="PERCENT", help="Share of transactions that are aborted.")  # fmt: skip
@size_option()
@partitions_option
@setup_options(rounds=3, warm_ups=1)
def transactions_command(
    setup: Setup,
    transactions: int,
    records_per_transaction: int,
    interval_ms: int | None,
    seconds: float,
    producers: int,
    aborted_percent: int,
    size_bytes: int,
    partitions: int,
) -> None:
    """Commit transactions one after the other: how many fit into a second, and how long each commit takes.

    With --commit-interval each producer sends at full speed and commits in intervals, for --seconds. See also
    'oncelog bench commit-cost'.
    """
    load = Workload("transactions", "transactions", "", size_bytes=size_bytes, partitions=partitions,
                    producers=producers, aborted_percent=aborted_percent)  # fmt: skip
    if interval_ms is None:
        _refuse("needs --commit-interval", "seconds")
        title = f"{records_per_transaction:,} x {size_bytes:,} B each, {producers} at a time"
        load = replace(
            load, title=title, linger_ms=0, transactions=transactions, per_transaction=records_per_transaction
        )
    else:
        _refuse("means nothing with --commit-interval", "transactions", "records_per_transaction")
        title = f"records of {size_bytes:,} B, commits every {interval_ms:,} ms, {producers} at a time"
        load = replace(load, title=title, commit_interval_ms=interval_ms, seconds=seconds)
    setup.measure(load)


def _refuse(why: str, *names: str) -> None:
    """Options that the user gave, although something else makes them meaningless."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


@click.command("commit-cost")
@click.option("--commit-interval", "interval_ms", default=100, show_default=True, type=IntRange(1),
              help="Milliseconds between commits.")  # fmt: skip
@seconds_option(4.0)
@size_option(1000)
@click.option("--partitions", default=4, show_default=True, type=IntRange(1))
@setup_options(rounds=8, warm_ups=1)
def commit_cost_command(setup: Setup, interval_ms: int, seconds: float, size_bytes: int, partitions: int) -> None:
    """Measure the throughput that transactions cost a producer at full speed.

    Short slices with and without transactions take turns, so that both see the same machine.
    """
    setup.measure(
        Workload(
            "commit-cost", "commit-cost", f"{size_bytes:,} B, {interval_ms:,} ms of records in a transaction",
            size_bytes=size_bytes, partitions=partitions, commit_interval_ms=interval_ms, seconds=seconds,
        )
    )  # fmt: skip


@click.command("groups")
@click.option("--commits", default=1000, show_default=True, type=IntRange(1), help="Offset commits per round.")
@click.option("--partitions", default=4, show_default=True, type=IntRange(2))
@setup_options(rounds=3, warm_ups=1)
def groups_command(setup: Setup, commits: int, partitions: int) -> None:
    """Time joining a consumer group, a rebalance, and offset commits."""
    setup.measure(Workload("groups", "groups", f"{commits:,} offset commits", commits, partitions=partitions))


COMMANDS = (
    produce_command,
    consume_command,
    latency_command,
    transactions_command,
    commit_cost_command,
    groups_command,
)
