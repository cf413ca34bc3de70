"""What the console can change: end a transaction, and move the offsets of a group.

Each change is looked at first (`*_dialog`) and made later (`*_change`), by a form that carries what was shown. The
second step asks the cluster again, and refuses if something is different by then. Nothing is done without a typed
confirmation and a line in the audit log.

Which way a transaction may be ended depends on who knows it:

    coordinator, Ongoing        fence: the coordinator aborts it on all its partitions
    coordinator, Prepare*       not at all: the decision is made, and an abort could contradict it
    nobody, hanging             abort on the partition, by a marker that no coordinator has asked for
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, Final

from oncelog.client.admin import TransactionDescription
from oncelog.client.errors import TimedOut
from oncelog.console.lanes import holder_row
from oncelog.console.page import BadInput, Console, Forbidden, NotConfirmed, NotThere, Page, Query, Refused
from oncelog.console.sentences import group_link, transaction_link
from oncelog.core.display import count_of, show_duration, show_time
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offset_reset import PartitionReset, plan_reset
from oncelog.monitoring.offsets import partition_offsets
from oncelog.monitoring.open_transactions import OpenTransaction, open_transactions
from oncelog.monitoring.positions import OFFSET_MAX, parse_position
from oncelog.monitoring.topics import led_partitions
from oncelog.monitoring.transactions import DECIDED_STATES, describe_known, description_row

PARTITION_MAX: Final = (1 << 31) - 1
OFFSETS_TEXT_MAX: Final = 20_000
"""It is in the address, so that a preview changes nothing."""
PLAN_TEXT_MAX: Final = 200_000
LOOK_AGAIN: Final = "It may have been done. Look at its page before you do it again; the console does not repeat it."
NOTHING_DONE: Final = "Nothing was changed. The console does not repeat it."


# Fencing


def fence_dialog(console: Console, query: Query) -> Page:
    name = query.required("id")
    found = _fenceable(console, name)
    data = {
        "transaction": description_row(found, console.now_ms()),
        "confirm": name,
        "command": console.command("txn", "fence", name),
        "fields": {
            "id": name,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "start_ms": found.start_time_ms,
        },
    }
    return _dialog(console, "fence.html", f"Fence {name}", data)


def fence_change(console: Console, form: Query, client: str) -> str:
    """Returns the address that shows the result."""
    name = form.required("id")
    _check(console, form, name)
    found = _fenceable(console, name)
    seen = (form.number("producer_id", -1, -1, OFFSET_MAX), form.number("producer_epoch", -1, -1, 32_767))
    if seen != (found.producer_id, found.producer_epoch):
        raise Refused(
            f"{name} is used by producer {found.producer_id} in epoch {found.producer_epoch} now; the page showed "
            f"producer {seen[0]} in epoch {seen[1]}.",
            "Look again before you decide.",
        )
    # A producer keeps its epoch from one transaction to the next before transaction.version 2.
    start_ms = form.number("start_ms", -1, -1, OFFSET_MAX)
    if start_ms != found.start_time_ms:
        raise Refused(
            f"The transaction that the page showed has ended. {name} has begun another one at "
            f"{show_time(found.start_time_ms)}.",
            "Look again before you decide.",
        )
    facts = {
        "transactional_id": name,
        "producer_id": seen[0],
        "producer_epoch": seen[1],
        "start_ms": start_ms,
        "client": client,
    }
    _logged(console, "fence", facts, lambda: console.admin.fence_producers([name]))
    return transaction_link(name)


def _fenceable(console: Console, name: str) -> TransactionDescription:
    found = describe_known(console.admin, [name]).get(name)
    if found is None:
        raise NotThere(f"No coordinator knows the transactional id {name!r}.")
    if found.state in DECIDED_STATES:
        raise Refused(
            f"The coordinator of {name} has decided how its transaction ends (it is in state {found.state}), and is "
            "writing the markers. An abort could contradict it.",
            "If it stays so, look for partitions of the transaction that have no leader: "
            + (", ".join(map(str, sorted(found.partitions))) or "none is left"),
        )
    if found.state != "Ongoing":
        raise Refused(f"{name} has no open transaction: it is in state {found.state}.")
    return found


# Aborting a hanging transaction


def abort_dialog(console: Console, query: Query) -> Page:
    found = _abortable(console, query)
    place = f"{found.partition.topic}:{found.partition.partition}"
    data = {
        "transaction": holder_row(found, console.now_ms()),
        "confirm": place,
        "command": console.command(*found.remedy),
        "fields": {
            "topic": found.partition.topic,
            "partition": found.partition.partition,
            "start_offset": found.start_offset,
            "producer_id": found.producer.producer_id,
            "producer_epoch": found.producer.producer_epoch,
        },
    }
    return _dialog(console, "abort.html", f"Abort on {place}", data)


def abort_change(console: Console, form: Query, client: str) -> str:
    _check(console, form, f"{form.required('topic')}:{form.required('partition')}")
    found = _abortable(console, form)
    seen = (form.number("producer_id", -1, -1, OFFSET_MAX), form.number("producer_epoch", -1, -1, 32_767))
    if seen != (found.producer.producer_id, found.producer.producer_epoch):
        raise Refused("Another producer's transaction begins there now.", "Look again before you decide.")
    facts = {
        "partition": str(found.partition),
        "start_offset": found.start_offset,
        "producer_id": seen[0],
        "producer_epoch": seen[1],
        "client": client,
    }
    try:
        _logged(console, "abort", facts, lambda: console.admin.abort_transaction(found.partition, found.start_offset))
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        raise Refused(
            "The broker takes markers only from who may do ClusterAction.",
            "Oncelog's broker without ACLs has to be started with --set oncelog.cluster.action.enable=true for this.",
        ) from error
    return "/hanging"


def _abortable(console: Console, query: Query) -> OpenTransaction:
    """Asked for now, not taken from a snapshot. Raises Refused for one that a coordinator may still commit."""
    topic = console.topic(query.required("topic"))
    partition = console.partition(topic, query.number("partition", -1, 0, 1_000_000))
    start = query.number("start_offset", -1, 0, OFFSET_MAX)
    found = next((one for one in open_transactions(console.admin, [partition]) if one.start_offset == start), None)
    if found is None:
        raise Refused(f"No open transaction of {partition} begins at offset {start} any more.", "It may have ended.")
    if found.is_decided:
        raise Refused(
            f"The coordinator of {found.transactional_id} has decided how the transaction ends, and is writing the "
            "markers. An abort could contradict it."
        )
    if found.is_hidden:
        raise Refused(
            "ACLs hide the transactional id of this transaction from you. Its coordinator may still commit it, and an "
            "abort on one partition would tear it apart.",
            "Ask somebody who may see all transactional ids.",
        )
    if not found.is_hanging:
        raise Refused(
            f"The coordinator of {found.transactional_id} knows this transaction and may still commit it. An abort on "
            "one partition would tear it apart.",
            f"Fence {found.transactional_id} instead: its coordinator aborts the transaction everywhere.",
        )
    age, needed = found.age_ms(console.now_ms()), console.settings.hanging_after_ms
    if age is not None and age < needed:
        raise Refused(
            f"Its producer wrote {show_duration(age)} ago. A transaction may take up to {show_duration(needed)} here: "
            "it is too early to say that it hangs.",
            "The option --hanging-after of 'oncelog console' sets this time.",
        )
    return found


# Offsets of a group


def reset_dialog(console: Console, query: Query) -> Page:
    group, topic, to = query.required("group"), query.required("topic"), query.word("to", "earliest")
    lines = query.text("offsets", longest=OFFSETS_TEXT_MAX)
    plan = _plan_of_lines(console, group, topic, lines) if lines else _plan(console, group, topic, to)
    places = [(f"{topic}:{one.partition.partition}", str(one.wanted)) for one in plan] if lines else [(topic, to)]
    commands = [console.command("group", "reset-offsets", group, "--topic", place, "--to", at) for place, at in places]
    data = {
        "group": group,
        "topic": topic,
        "to": None if lines else to,
        "plan": [{**one.as_row(), "wanted": one.wanted, "end": one.offsets.end} for one in plan],
        "confirm": group,
        "command": "\n".join(commands),
        "fields": {"group": group, "topic": topic, "plan": plan_text(plan)},
    }
    return _dialog(console, "reset.html", f"Move the offsets of {group}", data)


def reset_change(console: Console, form: Query, client: str) -> str:
    """Sets the offsets that were shown: a plan made anew could be another one by now."""
    group, topic = form.required("group"), form.required("topic")
    _check(console, form, group)
    _require_empty(console, group)
    planned = parse_plan(form.required("plan", PLAN_TEXT_MAX), topic)
    before = {place: found.offset for place, found in console.admin.group_offsets(group).items()}
    moved = [str(place) for place, (old, _) in planned.items() if before.get(place) != old]
    if moved:
        raise Refused(f"The group has committed other offsets meanwhile: {', '.join(moved)}.", "Look again.")
    after = {place: new for place, (_, new) in planned.items()}
    facts = {
        "group": group,
        "before": {str(place): old for place, (old, _) in planned.items()},
        "after": {str(place): new for place, new in after.items()},
        "client": client,
    }
    _logged(console, "reset offsets", facts, lambda: console.admin.alter_group_offsets(group, after))
    return group_link(group)


def _plan(console: Console, group: str, topic: str, to: str) -> list[PartitionReset]:
    _require_empty(console, group)
    partitions = led_partitions([console.topic(topic).info])
    try:
        return plan_reset(console.admin, group, partitions, parse_position(to, console.now_ms()))
    except (ValueError, OverflowError) as error:
        raise BadInput(str(error), "Write earliest, latest, an offset, a time, +N or -N.") from None


def _plan_of_lines(console: Console, group: str, topic: str, lines: str) -> list[PartitionReset]:
    _require_empty(console, group)
    wanted = parse_offsets(lines, topic)
    led = set(led_partitions([console.topic(topic).info]))
    unknown = sorted(wanted.keys() - led)
    if unknown:
        raise BadInput(f"{', '.join(map(str, unknown))} is not there, or has no leader.")
    before = {place: found.offset for place, found in console.admin.group_offsets(group).items()}
    offsets = partition_offsets(console.admin, sorted(wanted))
    return [PartitionReset(place, offsets[place], before.get(place), wanted[place]) for place in sorted(wanted)]


def parse_offsets(lines: str, topic: str) -> dict[TopicPartition, int]:
    """Lines of `partition,offset`, or of `topic,partition,offset` as Kafka's tools export them."""
    wanted = {}
    for number, line in enumerate(filter(None, map(str.strip, lines.splitlines())), 1):
        name, _, rest = line.rpartition(",")[0].rpartition(",")
        try:
            place, offset = TopicPartition(topic, int(rest)), int(line.rpartition(",")[2])
        except ValueError:
            raise BadInput(f"Line {number} is not a partition and an offset: {line!r}", "Write 0,1500") from None
        if name.strip('" ') not in ("", topic):
            raise BadInput(f"Line {number} is about {name}, and not about {topic}.", "Move one topic at a time.")
        if not _can_be(place, offset) or place in wanted:
            raise BadInput(f"Line {number} cannot be, or repeats a partition: {line!r}")
        wanted[place] = offset
    return wanted


def _require_empty(console: Console, group: str) -> None:
    description = console.admin.describe_groups([group])[group]
    if description.members:
        raise Refused(
            f"Group {group} has {count_of(len(description.members), 'member')}: they would commit their own offsets "
            "over these.",
            "Stop them first.",
        )


def plan_text(plan: list[PartitionReset]) -> str:
    """`partition:before:after` for each partition, with nothing for a partition that has no offset yet."""
    return ",".join(f"{one.partition.partition}:{'' if one.before is None else one.before}:{one.after}" for one in plan)


def parse_plan(text: str, topic: str) -> dict[TopicPartition, tuple[int | None, int]]:
    try:
        parts = [part.split(":") for part in text.split(",")]
        plan = {
            TopicPartition(topic, int(number)): (int(before) if before else None, int(after))
            for number, before, after in parts
        }
    except ValueError:
        plan = {}
    if not plan or not all(_can_be(place, after) for place, (_, after) in plan.items()):
        raise BadInput("The plan in the form is not one that this page made.")
    return plan


def _can_be(place: TopicPartition, offset: int) -> bool:
    return 0 <= place.partition <= PARTITION_MAX and 0 <= offset <= OFFSET_MAX


# What all have in common


def _dialog(console: Console, template: str, title: str, data: dict[str, Any]) -> Page:
    return Page(template, title, {**data, "allowed": console.settings.allow_changes}, live=False)


def _check(console: Console, form: Query, confirmation: str) -> None:
    if not console.settings.allow_changes:
        raise Forbidden("This console only shows things.", "Start it with --allow-changes to change them.")
    if not hmac.compare_digest(form.text("token").encode(), console.token.encode()):
        raise Forbidden("The form is not one of this console, or the console was started anew.", "Open the page again.")
    if form.text("confirm") != confirmation:
        raise BadInput(f"To confirm, type {confirmation!r} exactly as it is shown.", "Nothing was changed.")


def _logged(console: Console, what: str, facts: dict[str, Any], change: Callable[[], Any]) -> None:
    audit = console.audit
    if audit is None:
        raise Forbidden("This console only shows things.", "Start it with --allow-changes to change them.")
    try:
        audit.write(what, outcome="begun", **facts)
    except OSError as error:
        raise Refused(f"The audit log cannot be written: {error}.", "Nothing was changed.") from error
    try:
        change()
    except KafkaError as error:
        outcome = "unknown" if error.in_doubt else "failed"
        audit.write(what, outcome=outcome, error=f"{error.code.name}: {error.message}", **facts)
        if error.in_doubt or isinstance(error, TimedOut):
            raise NotConfirmed(error.message, LOOK_AGAIN if error.in_doubt else NOTHING_DONE) from error
        raise
    audit.write(what, outcome="done", **facts)
