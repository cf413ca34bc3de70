"""The promises, by name.

| name | promise |
| --- | --- |
| committed-only | read_committed returns no record of a transaction that is not committed |
| exactly-once | what was acknowledged and committed is read, and once; unless it was deleted, is too old, or a newer \
record of its key is there |
| all-or-nothing | all partitions of a transaction agree |
| in-order | the records of a producer are read in the order they were sent, per partition |
| offsets-atomic | committed offsets belong to committed transactions; they and the output agree, and do not go back |
| no-duplicates | a repeated batch is not appended again, and is answered with its old offset |
| start-moves-on | the log start moves forward only, over kills too if anybody was told, and not past the LSO |
| goes-in-time | what is too old, superseded or forgotten by time does go: segments, records and producers |
| lso-moves-on | the last stable offset never moves back, and reaches the high watermark when all is decided |
| epochs-grow | epochs of a transactional id never go back, and a new instance gets a new one |
| producer-ids-unique | a producer id is handed out once |
| nobody-waits | every request is answered within its bound, and every transaction ends |
| as-logged | every decision in `__transaction_state` has its markers, and every marker its decision |
| reader-consistent | what a reader has seen stays, before and after a restart, from any starting point |
| files-whole | every batch in the files is whole and at its offset |
| fenced-stays-fenced | an instance that was replaced does not get its transactional id back |
| identities-hold | an identity that was given to a client is honoured, and its retries are, until it is replaced |
| votes-hold | a prepared transaction of a two-phase commit ends as it was voted, whoever ends it |
| progress | where nothing goes wrong, every transaction succeeds |
| no-exception | the broker raises and logs no exception, and closes no connection over one |

Those about a moment are checked in `model`, `network` and `readers`, at that moment.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog.core.ids import GROUP_METADATA_TOPIC
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from tests.simulation import wire
from tests.simulation.log_audit import audit
from tests.simulation.model import Fate, Model, SentRecord, Violation
from tests.simulation.wire import Place, Seen
from tests.simulation.workers import GROUP

if TYPE_CHECKING:
    from tests.simulation.history import History

View = dict[Place, list[Seen]]

GOES_WITHIN_MS: Final = 5_000
"""Beyond its time, until somebody has looked."""


class Ends(NamedTuple):
    """Of a partition, and of which life of the broker."""

    start: int
    stable: int
    life: int


def check_ends(history: History, before: dict[Place, Ends]) -> None:
    broker, life = history.station.broker, history.station.starts
    if broker is None:
        return
    for partition in broker.partitions:
        place = (partition.topic_partition.topic, partition.topic_partition.partition)
        now = Ends(partition.log.log_start_offset, partition.last_stable_offset, life)
        last = before.get(place, Ends(0, 0, life))
        said = history.model.removals.deleted.get(place, 0)
        if now.start < said:
            history.model.violated("start-moves-on", f"{place} was said to start at {said}, and starts at {now.start}")
        # A kill may take back a log start that nobody was told of, and a last stable offset that rests on it.
        is_taken_back = now.start < last.start and now.life != last.life
        if now.stable < last.stable and not is_taken_back:
            history.model.violated("lso-moves-on", f"{place}: from {last.stable} back to {now.stable}")
        if now.start < last.start and not is_taken_back:
            history.model.violated("start-moves-on", f"{place}: from {last.start} back to {now.start}")
        if now.start > now.stable:
            history.model.violated("start-moves-on", f"{place} starts at {now.start}, above its LSO {now.stable}")
        before[place] = now


def check_all(history: History) -> None:
    """All is quiet: what is there now must be what was promised."""
    check_everything_ended(history)
    view = read_everything(history)
    check_view(history.model, view)
    _check_gone(history)
    _check_live_reader(history, view)
    _check_other_starts(history, view)
    check_offsets(history, view)
    _check_votes(history, view)
    history.final_view = view


def _check_gone(history: History) -> None:
    """All is quiet for long enough: what was to go has gone. By the clock that does not believe a jump at once, since
    a clock that was set back and is put right jumps ahead.
    """
    plan, broker = history.plan, history.station.running
    now_ms = broker.cautious_ms()
    for partition in broker.partitions:
        topic, log = partition.topic_partition.topic, partition.log
        if topic == "out" and plan.retention_ms is not None:
            # Only the oldest one: a segment of old timestamps behind one that stays is kept with it, as in Kafka.
            oldest = log.segments[0]
            age_ms = now_ms - oldest.largest_timestamp_ms
            if len(log.segments) > 1 and age_ms > plan.retention_ms + GOES_WITHIN_MS:
                raise Violation("goes-in-time", f"{oldest} of {topic} is {age_ms} ms old and still there")
        if plan.producer_expiration_ms is not None:
            for producer in log.producer_state.active_producers():
                idle_ms = now_ms - producer.last_timestamp
                if producer.txn_first_offset < 0 and idle_ms > plan.producer_expiration_ms + GOES_WITHIN_MS:
                    raise Violation("goes-in-time", f"{producer} of {topic} is idle for {idle_ms} ms and still known")


def check_progress(history: History) -> None:
    if not history.plan.is_calm:
        return
    wanted = history.plan.rounds * history.plan.ids
    if history.setbacks or len(history.model.transactions) != wanted:
        done = f"{len(history.model.transactions)} of {wanted} transactions were begun"
        raise Violation("progress", f"{done}; refused without a reason: {history.setbacks}")


def check_again(history: History) -> None:
    """After one more start, nothing has changed."""
    check_everything_ended(history)
    view = read_everything(history)
    for place, records in history.final_view.items():
        if not _is_what_is_left(history.model, place, records, view):
            raise Violation("reader-consistent", f"{place} changed with a restart: {_difference(records, view[place])}")


def read_everything(history: History) -> View:
    return {place: _read_from(history, place, _start_of(history, place), 1 << 20) for place in history.places}


def _start_of(history: History, place: Place) -> int:
    part = history.ask(ApiKey.LIST_OFFSETS, 5, wire.list_offsets(place)).topics[0].partitions[0]
    if part.error_code:
        raise Violation("reader-consistent", f"{place}: error {part.error_code} for its start")
    return int(part.offset)


def _is_what_is_left(model: Model, place: Place, before: list[Seen], view: View) -> bool:
    """The same records, or those without some that may be removed."""
    after = view[place]
    if after == before:
        return True
    gone = [record.value or "" for record in before if record not in after]
    return [record for record in before if record in after] == after and not model.missing(gone, view)


def _read_from(history: History, place: Place, start: int, max_bytes: int) -> list[Seen]:
    """What a read_committed consumer gets that starts there, fetch by fetch."""
    records: list[Seen] = []
    position = start
    while True:
        request = wire.fetch({place: position}, wire.READ_COMMITTED, max_bytes=max_bytes)
        part = wire.fetch_answers(history.ask(ApiKey.FETCH, 11, request))[place]
        if part.error_code:
            raise Violation("reader-consistent", f"{place} at {position}: error {part.error_code}")
        found, following = wire.filtered(part, position)
        records += found
        if following == position:
            return records
        position = following


def check_everything_ended(history: History) -> None:
    listed = history.ask(ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest())
    if listed.error_code:
        raise Violation("nobody-waits", f"transactions cannot be listed: {listed.error_code}")
    for entry in listed.transaction_states:
        if entry.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
            raise Violation("nobody-waits", f"{entry.transactional_id} is {entry.transaction_state} for ever")
    broker = history.station.running
    for partition in broker.partitions:
        if partition.last_stable_offset != partition.high_watermark:
            raise Violation(
                "lso-moves-on",
                f"{partition.topic_partition}: stuck at {partition.last_stable_offset} of {partition.high_watermark}",
            )
        if partition.high_watermark != partition.log.log_end_offset:
            raise Violation("lso-moves-on", f"{partition.topic_partition}: the high watermark trails the end")
    if broker.transactions.parked_count or broker.markers.queued_count:
        raise Violation("nobody-waits", "requests are parked or markers queued, and nothing goes on")


def check_view(model: Model, view: View) -> None:
    """The committed records against what clients were told."""
    _check_once(model, view)
    _check_all_or_nothing(model, view)
    _check_order(model, view)


def _check_once(model: Model, view: View) -> None:
    read = [(place, record) for place, records in view.items() for record in records]
    where: dict[str, list[tuple[Place, int]]] = defaultdict(list)
    for place, seen in read:
        if seen.value is not None and seen.value in model.records:
            where[seen.value].append((place, seen.offset))
        else:
            raise Violation("committed-only", f"{seen.value!r} at {place} {seen.offset} was never sent")
    committed = [value for value, record in model.records.items() if model.fate_of(record) is Fate.COMMITTED]
    lost = model.missing((value for value in committed if not model.records[value].is_doomed), view)
    for value, record in model.records.items():
        if record.is_doomed:
            continue
        found = where.get(value, [])
        fate = model.fate_of(record)
        if len(found) > 1:
            raise Violation("exactly-once", f"{value} is read {len(found)} times: {found}")
        if found and fate is Fate.ABORTED:
            raise Violation("committed-only", f"{value} is read at {found[0]}, but was not committed")
        if value in lost:
            raise Violation("exactly-once", f"{value} was acknowledged and committed, and is not read")
        if found and found[0][0] != record.place:
            raise Violation("exactly-once", f"{value} was sent to {record.place} and is in {found[0][0]}")
        if found and record.acknowledged_at not in (None, found[0][1]):
            raise Violation(
                "no-duplicates", f"{value} was acknowledged at {record.acknowledged_at} and is at {found[0][1]}"
            )


def _check_all_or_nothing(model: Model, view: View) -> None:
    there = {record.value for records in view.values() for record in records}
    for transaction in model.transactions:
        values = [value for values in transaction.records.values() for value in values]
        seen = [value for value in values if value in there]
        if seen and transaction.refused_to_owner:
            raise Violation("identities-hold", f"{transaction.name} was committed, and its producer was refused")
        if seen and (missing := sorted(model.missing(values, view))):
            raise Violation("all-or-nothing", f"{transaction.name}: {seen} are read, {missing} are not")


def _check_order(model: Model, view: View) -> None:
    for place, records in view.items():
        last: dict[str, tuple[int, int]] = {}
        for seen in records:
            record = model.records[seen.value or ""]
            if record.order <= last.get(record.producer, (-1, -1)):
                raise Violation("in-order", f"{seen.value} at {place} {seen.offset} comes too late")
            last[record.producer] = record.order


def _check_live_reader(history: History, view: View) -> None:
    """What a reader has seen along the way is what is there now, and as far as it came it has missed nothing."""
    for place, records in view.items():
        position = history.view.positions[place]
        skipped, seen = history.view.has_skipped, history.view.view[place]
        expected = [record for record in records if record.offset < position and not skipped(place, record.offset)]
        if history.model.removals.affects(place):
            # What it saw may be gone since; what is there now it must have seen.
            seen = [record for record in seen if record in expected]
        if seen != expected:
            raise Violation("reader-consistent", f"{place}: the reader saw {_difference(expected, seen)}")


def _check_other_starts(history: History, view: View) -> None:
    """A reader that starts in the middle of things sees the same from there on."""
    for place, records in view.items():
        first, end = (records[0].offset, records[-1].offset) if records else (_start_of(history, place),) * 2
        for start in {first + (end - first) // 3, first + (end - first) // 2, end}:
            expected = [record for record in records if record.offset >= start]
            found = _read_from(history, place, start, 150)
            if not _is_what_is_left(history.model, place, expected, {**view, place: found}):
                raise Violation("reader-consistent", f"{place} from {start} on: {_difference(expected, found)}")


def check_offsets(history: History, view: View) -> None:
    """Committed offsets and committed output tell the same story."""
    model = history.model
    groups = {group for transaction in model.transactions for group, _ in transaction.offsets}
    for group in sorted(groups):
        request = wire.offset_fetch(group, history.input_places, require_stable=True)
        answer = history.ask(ApiKey.OFFSET_FETCH, 7, request)
        if answer.error_code:
            raise Violation("offsets-atomic", f"{group}: error {answer.error_code}")
        for place, part in wire.offset_fetch_answers(answer).items():
            if part.error_code:
                raise Violation("offsets-atomic", f"{group}: error {part.error_code} for {place}")
            model.read_offset(group, place, part.committed_offset)
            if group == GROUP:
                _check_transformed(model, view, place, max(0, part.committed_offset))
            elif place == history.input_places[0]:
                _check_numbered(model, view, group, max(0, part.committed_offset))
    if model.problems:
        raise model.problems[0]


def _check_transformed(model: Model, view: View, place: Place, committed: int) -> None:
    """Workers: one output for each input below the committed offset, and for no other."""
    prefix = f"<{place[1]}-"
    outputs = sorted(
        _worker_input(record.value or "")
        for records in view.values()
        for record in records
        if prefix in (record.value or "")
    )
    removed = _removed(model, view, (record for record in model.records.values() if prefix in record.value))
    _check_outputs(str(place), committed, outputs, {_worker_input(value) for value in removed})


def _check_numbered(model: Model, view: View, group: str, committed: int) -> None:
    owner = group.removeprefix("group-")
    outputs = sorted(
        _producer_input(record.value or "")
        for records in view.values()
        for record in records
        if model.records[record.value or ""].producer == owner
    )
    removed = _removed(model, view, (record for record in model.records.values() if record.producer == owner))
    _check_outputs(group, committed, outputs, {_producer_input(value) for value in removed})


def _worker_input(value: str) -> int:
    return int(value.rpartition("-")[2].rstrip(">" + wire.TOMBSTONE_MARK))


def _producer_input(value: str) -> int:
    return int(value.rpartition(":")[2].rstrip(wire.TOMBSTONE_MARK))


def _removed(model: Model, view: View, records: Iterable[SentRecord]) -> set[str]:
    """Those that are not read, and may have been committed and removed since."""
    read = {seen.value for found in view.values() for seen in found}
    absent = {record.value for record in records if record.value not in read}
    return {
        value
        for value in absent - model.missing(absent, view)
        if model.fate_of(model.records[value]) is not Fate.ABORTED
    }


def _check_outputs(who: str, committed: int, outputs: list[int], removed: set[int]) -> None:
    """One output for each input below the committed offset and for no other; some may have been removed since."""
    wanted = [number for number in range(committed) if number in outputs or number not in removed]
    if outputs != wanted:
        raise Violation("offsets-atomic", f"{who}: {committed} inputs are committed, outputs are {outputs}")


def _check_votes(history: History, view: View) -> None:
    read = {record.value for records in view.values() for record in records}
    for vote in history.past_votes:
        transaction = vote.transaction
        values = [value for values in transaction.records.values() for value in values]
        if vote.commit is True and history.model.missing(values, view):
            raise Violation("votes-hold", f"{transaction.name} was voted to be committed, and is not")
        if vote.commit is not True and not read.isdisjoint(values):
            raise Violation("votes-hold", f"{transaction.name} was not voted to be committed, and is")


def check_files(history: History) -> None:
    """Without the broker: what it left on disk."""
    model = history.model
    removals = model.removals
    found = audit(
        history.station.folder,
        model.undecided,
        compacted=history.plan.compaction,
        tables=removals.tables,
        cut=frozenset(place for place in history.output_places if removals.affects(place)),
    )
    for name, state in found.last_states.items():
        if state in (1, 2, 3):
            raise Violation("as-logged", f"the log leaves {name} in state {state}")
    for place, records in found.logs.items():
        if place[0] == GROUP_METADATA_TOPIC:
            continue
        values: set[str] = set()
        for record in records:
            if record.value is not None and place in history.places:
                if record.value in values:
                    raise Violation("no-duplicates", f"{record.value} is twice in the log of {place}")
                values.add(record.value)
                sent = model.records.get(record.value)
                if sent is None or sent.place != place:
                    raise Violation("no-duplicates", f"{record.value} is in the log of {place}")
        _check_onlooker(history, place, records)


def _check_onlooker(history: History, place: Place, records: list[Seen]) -> None:
    by_offset = {record.offset: record for record in records}
    first = records[0].offset if records else sys.maxsize
    removals = history.model.removals
    for seen in history.onlooker.view.get(place, []):
        if removals.affects(place) and (seen.offset < first or seen.offset not in by_offset):
            continue
        if by_offset.get(seen.offset) != seen:
            raise Violation(
                "reader-consistent", f"{place} {seen.offset}: {seen} was read, the log has {by_offset.get(seen.offset)}"
            )


def _difference(expected: list[Seen], found: list[Seen]) -> str:
    missing = [(record.offset, record.value) for record in expected if record not in found]
    extra = [(record.offset, record.value) for record in found if record not in expected]
    return f"missing {missing}, unexpected {extra}" if missing or extra else "the same in another order"
