"""`oncelog txn`: transactions as coordinators and partitions know them, who blocks readers, and how to end it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli import parsing, progress
from oncelog.cli.cluster_access import (
    ClusterAccess,
    cluster_options,
    confirm,
    matching_topics,
    require_partitions,
    unknown_name,
    yes_option,
)
from oncelog.cli.completion import complete_topics, complete_transactional_ids
from oncelog.cli.output import (
    count_of,
    json_line,
    output_option,
    print_command,
    print_json,
    print_lines,
    print_table,
    print_wrapped,
    show_duration,
    show_time,
    with_name,
)
from oncelog.cli.parsing import IntRange
from oncelog.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from oncelog.client.admin import Admin
    from oncelog.monitoring.open_transactions import HeldBackPartition, OpenTransaction

_IDS = click.argument(
    "ids", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...", shell_complete=complete_transactional_ids
)


_INDENT = len("  partitions  ")
"""What is told of an id is in a column."""


def _states(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    from oncelog.monitoring.transactions import STATES

    return parsing.state_names(texts, STATES)


@click.group("txn")
def txn_command() -> None:
    """See transactions, find out which one holds readers back, and end it."""


# What coordinators know


@txn_command.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", callback=_states,
              help="Only in this state: Ongoing, PrepareCommit, CompleteAbort, ...")  # fmt: skip
@click.option("--open", "only_open", is_flag=True, help="Only open transactions: Ongoing, PrepareCommit, PrepareAbort.")
@click.option("--older-than", metavar="DURATION", help="Only transactions that have been open for longer.")
@click.option("--pattern", metavar="REGEX", help="Only ids that match.")
@output_option
@cluster_options
def list_command(
    access: ClusterAccess,
    states: tuple[str, ...],
    only_open: bool,
    older_than: str | None,
    pattern: str | None,
    output: str,
) -> None:
    """List the transactional ids of all coordinators, with the age of open transactions."""
    from oncelog.monitoring.transactions import OPEN_STATES, list_transactions

    with access.admin() as admin:
        found = list_transactions(
            admin,
            states=[*states, *(sorted(OPEN_STATES) if only_open else [])],
            older_than_ms=parsing.duration_ms(older_than, "--older-than") if older_than is not None else -1,
            pattern=pattern,
        )
    now_ms = parsing.now_ms()
    rows = [transaction.as_row(now_ms) for transaction in found]
    if output == "json":
        print_json(rows)
        return
    table = [
        [r["transactional_id"], r["state"], r["producer_id"], r["coordinator"], _show_age(r["age_ms"]), r["partitions"]]
        for r in rows
    ]
    columns = ["transactional id", "state", "producer", "coordinator", "age", "partitions"]
    print_table(columns, table, empty="there are no such transactions")


def _show_age(age_ms: Any) -> str | None:
    return None if age_ms is None else show_duration(age_ms)


@txn_command.command("describe")
@_IDS
@output_option
@cluster_options
def describe_command(access: ClusterAccess, ids: tuple[str, ...], output: str) -> None:
    """Show state, producer, age, time-out and partitions of transactional ids."""
    from oncelog.monitoring.transactions import OPEN_STATES, age_ms, description_row

    with access.admin() as admin:
        _require_ids(admin, ids)
        described = admin.describe_transactions(ids)
    now_ms = parsing.now_ms()
    if output == "json":
        print_json([description_row(described[i], now_ms) for i in ids])
        return
    for transactional_id in ids:
        found = described[transactional_id]
        age = age_ms(found, now_ms)
        behind = f"  {found.state}  producer {found.producer_id} epoch {found.producer_epoch}"
        click.echo(with_name("", transactional_id, behind))
        click.echo(f"  coordinator {found.coordinator}")
        click.echo(f"  time-out    {show_duration(found.timeout_ms)}")
        if age is not None and found.state in OPEN_STATES:
            left = found.timeout_ms - age
            ends = f"aborted by its coordinator in {show_duration(left)}" if left > 0 else "its time-out has passed"
            print_wrapped(f"  open since  {show_time(found.start_time_ms)} ({show_duration(age)}), {ends}", _INDENT)
        if found.partitions:
            names = [with_name(" " * _INDENT, str(name), ",").strip() for name in sorted(found.partitions)]
            print_wrapped(f"  partitions  {' '.join(names).removesuffix(',')}", _INDENT)


def _require_ids(admin: Admin, ids: Iterable[str]) -> None:
    known = [found.transactional_id for found in admin.list_transactions()]
    for transactional_id in ids:
        if transactional_id not in known:
            raise click.ClickException(unknown_name("transactional id", transactional_id, known))


# What partitions know


@txn_command.command("blocking")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:PARTITION,...]]...", shell_complete=complete_topics)
@output_option
@cluster_options
def blocking_command(access: ClusterAccess, topics: tuple[str, ...], output: str) -> None:
    """Show the transactions that hold the last stable offset back, and a command that ends each.

    read_committed readers get nothing from the last stable offset on until these have ended. Looks at all topics if
    none is named.
    """
    from oncelog.monitoring.open_transactions import count_waiting, held_back_partitions
    from oncelog.monitoring.topics import transaction_partitions

    with access.admin() as admin:
        wanted = (
            require_partitions(admin, topics) if topics else transaction_partitions(admin.list_topics(internal=True))
        )
        held = held_back_partitions(admin, wanted)
        waiting = [count_waiting(admin, one) for one in held]
    now_ms = parsing.now_ms()
    if output == "json":
        print_json([_held_row(access, *found, now_ms) for found in zip(held, waiting, strict=True)])
        return
    if not held:
        click.echo(
            f"nothing is held back on {', '.join(topics) or 'any topic'}: every last stable offset is at the end"
        )
    for one, records in zip(held, waiting, strict=True):
        _print_held(access, one, records, now_ms)


def _held_row(access: ClusterAccess, held: HeldBackPartition, waiting: int | None, now_ms: int) -> dict[str, Any]:
    return {
        **held.as_row(now_ms),
        "records_waiting": waiting,
        "blocking": [_open_row(access, found, now_ms) for found in held.blocking],
        "open_after": [_open_row(access, found, now_ms) for found in held.open_after],
    }


def _open_row(access: ClusterAccess, found: OpenTransaction, now_ms: int) -> dict[str, Any]:
    return {**found.as_row(now_ms), "remedy": access.command(*found.remedy) if found.remedy else None}


def _print_held(access: ClusterAccess, held: HeldBackPartition, waiting: int | None, now_ms: int) -> None:
    how_many = count_of(waiting, "record") if waiting is not None else "more than a million offsets"
    print_wrapped(
        f"{with_name('', str(held.partition), ':')} the last stable offset is {held.offsets.last_stable}, "
        f"the end is {held.offsets.end}: {how_many} {'waits' if waiting == 1 else 'wait'}",
        2,
    )
    if not held.blocking:
        click.echo("  the marker of the transaction is there, and waits for the high watermark to pass it")
    for found in held.blocking:
        _print_blocking(access, found, now_ms)
    for found in held.open_after:
        name = found.transactional_id or str(found.producer.producer_id)
        click.echo(with_name(f"  also open, from offset {found.start_offset} on: ", name))


def _print_blocking(access: ClusterAccess, found: OpenTransaction, now_ms: int) -> None:
    producer = found.producer
    name = found.transactional_id or "unknown transactional id"
    behind = f", producer {producer.producer_id} epoch {producer.producer_epoch}"
    click.echo(with_name("  held back by ", name, behind))
    age = found.age_ms(now_ms)
    if age is not None:
        click.echo(f"    open for {show_duration(age)}, from offset {found.start_offset} on")
    if found.is_hanging:
        print_wrapped(f"    HANGING: {found.why_hanging}; no coordinator will ever end it", 6)
    elif found.is_hidden:
        click.echo("    ACLs hide its transactional id from you: its coordinator may end it")
    elif found.is_decided:
        click.echo("    its coordinator has decided how it ends, and is writing the markers")
    elif age is not None and found.description is not None:
        timeout = found.description.timeout_ms
        soon = (
            f"aborts it in {show_duration(timeout - age)}"
            if timeout > age
            else "is about to abort it: the time-out has passed"
        )
        print_wrapped(f"    its coordinator {soon} (time-out {show_duration(timeout)})", 6)
    if found.remedy:
        print_command("    to end it now:", access.command(*found.remedy))


@txn_command.command("hanging")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--older-than", default="15m", show_default=True, metavar="DURATION",
              help="Only transactions whose producer has not written for so long.")  # fmt: skip
@output_option
@cluster_options
def hanging_command(access: ClusterAccess, topics: tuple[str, ...], older_than: str, output: str) -> None:
    """Find transactions that are open on a partition and that no coordinator will ever end.

    Searches all topics if none is named. The exit code is 1 if there are any.
    """
    from oncelog.monitoring.open_transactions import hanging_transactions, open_transactions
    from oncelog.monitoring.topics import transaction_partitions

    with access.admin() as admin:
        infos = matching_topics(admin, topics) if topics else admin.list_topics(internal=True)
        found = open_transactions(admin, transaction_partitions(infos))
    now_ms = parsing.now_ms()
    hanging = hanging_transactions(found, parsing.duration_ms(older_than, "--older-than"), now_ms)
    if output == "json":
        print_json([_open_row(access, txn, now_ms) for txn in hanging])
    elif not hanging:
        click.echo(f"no transaction hangs; {count_of(len(found), 'transaction')} open", err=True)
        hidden = sum(one.is_hidden for one in found)
        if hidden:
            click.echo(f"ACLs hide the ids of {hidden} of them from you: whether they hang is not known", err=True)
    else:
        for txn in hanging:
            age = txn.age_ms(now_ms)
            print_wrapped(
                f"{with_name('', str(txn.partition))} from offset {txn.start_offset}: producer "
                f"{txn.producer.producer_id} epoch {txn.producer.producer_epoch}, last written "
                f"{show_duration(age or 0)} ago: {txn.why_hanging}",
                2,
            )
            print_command("  to end it:", access.command(*txn.remedy))
    raise SystemExit(1 if hanging else 0)


@txn_command.command("abort")
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option(
    "--start-offset", type=int, required=True, help="Where the transaction begins; see 'oncelog txn hanging'."
)
@yes_option
@cluster_options
def abort_command(access: ClusterAccess, partition: str, start_offset: int, yes: bool) -> None:
    """Write an abort marker to one partition, without asking any coordinator.

    For hanging transactions. A transaction that its coordinator knows is ended with 'oncelog txn fence'.
    """
    from oncelog.monitoring.open_transactions import open_transactions

    target = parsing.partition_name(partition)
    with access.admin() as admin:
        require_partitions(admin, [f"{target.topic}:{target.partition}"])
        opened = {found.start_offset: found for found in open_transactions(admin, [target])}
        if start_offset not in opened:
            there = ", ".join(map(str, opened)) or "none"
            raise click.ClickException(
                f"no transaction of {target} begins at offset {start_offset}; open ones: {there}"
            )
        found = opened[start_offset]
        if found.is_decided:
            raise click.ClickException(
                f"the coordinator of {found.transactional_id} has decided how the transaction ends and is writing the "
                "markers: an abort could contradict it"
            )
        if found.is_hidden:
            raise click.ClickException(
                "ACLs hide the transactional id of this transaction from you: its coordinator may still commit it, and "
                "an abort on one partition would tear it apart"
            )
        if not found.is_hanging:
            progress.say(f"{found.transactional_id} is alive: '{access.command(*found.remedy)}' is better")
        confirm(f"Abort the transaction of producer {found.producer.producer_id} on {target}?", yes=yes)
        try:
            admin.abort_transaction(target, start_offset)
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            raise click.ClickException(
                "the broker takes markers only from who may do ClusterAction. Oncelog's broker without ACLs has to be "
                "started with --set oncelog.cluster.action.enable=true for this"
            ) from error
    click.echo(f"aborted on {target}: the transaction of producer {found.producer.producer_id} from {start_offset} on")


@txn_command.command("fence")
@_IDS
@yes_option
@cluster_options
def fence_command(access: ClusterAccess, ids: tuple[str, ...], yes: bool) -> None:
    """Fence the current producers of transactional ids, and abort their open transactions."""
    with access.admin() as admin:
        _require_ids(admin, ids)
        confirm(f"Fence {', '.join(ids)}? Their producers fail from then on.", yes=yes)
        for name in ids:
            producer_id, epoch = admin.fence_producers([name])[name]
            progress.echo(f"fenced {name}: producer {producer_id} is at epoch {epoch} now")


# What happened


@txn_command.command("history")
@click.argument("transactional_id", metavar="TRANSACTIONAL_ID", shell_complete=complete_transactional_ids)
@output_option
@cluster_options
def history_command(access: ClusterAccess, transactional_id: str, output: str) -> None:
    """Show every change of a transactional id, as far back as compaction has left __transaction_state."""
    from oncelog.monitoring.transaction_history import read_history, state_partitions

    with access.admin() as admin:
        if not state_partitions(admin):
            raise click.ClickException("there is no __transaction_state yet: nobody has used a transactional id")
        events = read_history(admin, transactional_id)
    if not events:
        known = access.command("txn", "list")
        raise click.ClickException(
            f"__transaction_state has nothing about {transactional_id or repr(transactional_id)}; see '{known}'"
        )
    if output == "json":
        print_json([event.as_row() for event in events])
        return
    rows: list[list[str | None]] = []
    before_ms: int | None = None
    for event in events:
        since = None if before_ms is None else show_duration(event.time_ms - before_ms)
        identity = f"{event.producer_id}:{event.producer_epoch}" if event.producer_id >= 0 else None
        partitions = ", ".join(map(str, event.partitions)) or None
        rows.append([show_time(event.time_ms), since, event.what, identity, partitions])
        before_ms = event.time_ms
    print_table(["time", "after", "what", "producer", "partitions"], rows, whole=["time", "after", "what", "producer"])


@txn_command.command("watch")
@click.option("--for", "lasting", metavar="DURATION", help="Stop after this time.")
@click.option("-n", "--count", type=IntRange(min=1), metavar="N", help="Stop after this number of events.")
@click.option(
    "--interval", default="500ms", show_default=True, metavar="DURATION", help="How often the screen is updated."
)
@output_option
@cluster_options
def watch_command(access: ClusterAccess, lasting: str | None, count: int | None, interval: str, output: str) -> None:
    """Watch transactions as they begin, prepare, commit, abort and time out, with their rates.

    A live screen in a terminal, one line per event in a pipe.
    """
    import sys

    from oncelog.cli import txn_watch
    from oncelog.cli.following import Outage, poll_for_ever
    from oncelog.client.consumer import Consumer
    from oncelog.client.consumer_config import CONSUMER_TABLE
    from oncelog.monitoring.transaction_activity import TransactionActivity
    from oncelog.monitoring.transaction_history import TransactionFollower
    from oncelog.monitoring.transactions import describe_known

    interval_ms = parsing.duration_ms(interval, "--interval")
    if interval_ms < txn_watch.INTERVAL_MS_MIN:
        raise click.BadParameter(f"it is at least {txn_watch.INTERVAL_MS_MIN}ms", param_hint="--interval")
    properties = access.properties(CONSUMER_TABLE, auto_offset_reset="latest")
    with access.admin() as admin, Consumer(properties) as consumer:
        opened = describe_known(admin, [t.transactional_id for t in admin.list_transactions(states=["Ongoing"])])
        end_ms = None if lasting is None else parsing.now_ms() + parsing.duration_ms(lasting, "--for")
        polls = poll_for_ever(TransactionFollower(admin, consumer), Outage(), interval_ms)
        batches = txn_watch.bounded(polls, end_ms, count, parsing.now_ms)
        try:
            if output == "text" and sys.stdout.isatty():
                progress.turn_off()
                txn_watch.draw_live(TransactionActivity(opened.values()), batches, parsing.now_ms)
                return
            for events in batches:
                if output == "json":
                    print_lines(json_line(event.as_row()) for event in events)
                else:
                    print_lines(txn_watch.event_line(event) for event in events)
                sys.stdout.flush()
        except KeyboardInterrupt:
            return
