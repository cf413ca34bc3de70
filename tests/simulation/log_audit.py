"""An independent look at the files of a stopped broker: its batches and decisions, read without any of `storage`.

What it must find: every batch whole and at the next offset; every value at most once; for every decision in
`__transaction_state` a marker of that kind in each of its partitions; and no transaction ended by a marker that was not
decided there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.protocol.batch import CorruptBatchError, crc_of, decode_records, iter_headers
from oncelog.protocol.compiler import decode_versioned
from oncelog.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from tests.simulation.model import Violation
from tests.simulation.wire import Place, Seen, records_in

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
_NAMES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
_FOLLOWS: Final = {
    EMPTY: {EMPTY, ONGOING, PREPARE_ABORT},
    ONGOING: {ONGOING, PREPARE_COMMIT, PREPARE_ABORT},
    PREPARE_COMMIT: {COMPLETE_COMMIT},
    PREPARE_ABORT: {COMPLETE_ABORT},
    COMPLETE_COMMIT: {EMPTY, ONGOING, PREPARE_ABORT},
    COMPLETE_ABORT: {EMPTY, ONGOING, PREPARE_ABORT},
}


class Decision(NamedTuple):
    producer_id: int
    epoch: int
    commit: bool
    places: frozenset[Place]


@dataclass
class Audit:
    logs: dict[Place, list[Seen]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    last_states: dict[str, int] = field(default_factory=dict)


def read_log(folder: Path, *, unfinished: bool = False) -> Iterator[bytes]:
    """The batches of one partition, in order; an `unfinished` log may end in half a batch, as after a kill."""
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        headers = iter_headers(data)
        while True:
            try:
                position, header = next(headers)
            except StopIteration:
                break
            except CorruptBatchError:
                if unfinished:
                    return
                raise
            if crc_of(data, position, header.size_bytes) != header.crc:
                raise Violation("files-whole", f"{path.parent.name}: bad CRC at offset {header.base_offset}")
            yield data[position : position + header.size_bytes]


def audit(
    data_dir: Path,
    undecided: Set[int] = frozenset(),
    *,
    unfinished: bool = False,
    compacted: bool = False,
    tables: Collection[Place] = (),
    cut: Collection[Place] = (),
) -> Audit:
    """Everything in a data folder.

    `unfinished`: of a killed broker, so that markers may be missing. `compacted`: the coordinators' logs were cleaned,
    so that older decisions are missing. `tables` are compacted logs, and `cut` those whose beginning may be deleted:
    markers may be missing in both.
    """
    found = Audit()
    for folder in sorted(data_dir.iterdir()):
        topic, dash, number = folder.name.rpartition("-")
        if not folder.is_dir() or not dash or not number.isdigit():
            continue
        place = (topic, int(number))
        if topic == TRANSACTION_STATE_TOPIC:
            _read_decisions(place, read_log(folder, unfinished=unfinished), found, compacted=compacted)
        else:
            batches = read_log(folder, unfinished=unfinished)
            is_internal = topic == GROUP_METADATA_TOPIC
            has_gaps = place in tables or (is_internal and compacted)
            found.logs[place] = _read_data(place, batches, is_internal=is_internal, has_gaps=has_gaps)
    if not unfinished and not compacted:
        _check_markers(found, undecided, may_lack={*tables, *cut})
    return found


def _read_data(place: Place, batches: Iterator[bytes], *, is_internal: bool, has_gaps: bool) -> list[Seen]:
    seen: list[Seen] = []
    for batch in batches:
        records = records_in(batch)
        if is_internal:
            records = [record._replace(value=None) for record in records]
        for record in records:
            if seen and (record.offset <= seen[-1].offset or (record.offset > seen[-1].offset + 1 and not has_gaps)):
                raise Violation("files-whole", f"{place}: offset {record.offset} follows {seen[-1].offset}")
            seen.append(record)
    return seen


def _read_decisions(place: Place, batches: Iterator[bytes], found: Audit, *, compacted: bool) -> None:
    states: dict[str, int] = {}
    for batch in batches:
        for record in decode_records(batch):
            transactional_id = decode_versioned(TransactionLogKey, record.key or b"").transactional_id
            if record.value is None:
                states.pop(transactional_id, None)
                continue
            value = decode_versioned(TransactionLogValue, record.value)
            state, before = value.transaction_status, states.get(transactional_id)
            if before is not None and state not in _FOLLOWS[before] and not compacted:
                raise Violation(
                    "as-logged", f"{place}: {transactional_id} went from {_NAMES[before]} to {_NAMES[state]}"
                )
            states[transactional_id] = state
            if state in (PREPARE_COMMIT, PREPARE_ABORT):
                places = frozenset(
                    (group.topic, index)
                    for group in value.transaction_partitions or []
                    for index in group.partition_ids
                )
                commit = state == PREPARE_COMMIT
                found.decisions.append(Decision(value.producer_id, value.producer_epoch, commit, places))
    found.last_states.update(states)


def _check_markers(found: Audit, undecided: Set[int], may_lack: Set[Place]) -> None:
    decided: dict[tuple[Place, int], list[tuple[int, bool]]] = defaultdict(list)
    for decision in found.decisions:
        for place in decision.places:
            decided[place, decision.producer_id].append((decision.epoch, decision.commit))
    for place, log in found.logs.items():
        markers: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        endings: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        is_open: set[int] = set()
        for record in log:
            if record.marker is None:
                if record.transactional:
                    is_open.add(record.producer_id)
                continue
            end = (record.epoch, record.marker.commit)
            markers[record.producer_id].append(end)
            if record.producer_id in is_open:
                is_open.discard(record.producer_id)
                endings[record.producer_id].append(end)
        for producer_id, ends in endings.items():
            if producer_id not in undecided and not _is_subsequence(ends, decided[place, producer_id]):
                raise Violation(
                    "as-logged",
                    f"{place}: transactions of producer {producer_id} ended as {_show(ends)}, but were decided as "
                    f"{_show(decided[place, producer_id])}",
                )
        for (where, producer_id), wanted in decided.items():
            if where == place and place not in may_lack:
                missing = Counter(wanted) - Counter(markers[producer_id])
                if missing:
                    raise Violation(
                        "as-logged", f"{place}: producer {producer_id} lacks markers {_show(list(missing))}"
                    )


def _is_subsequence(ends: list[tuple[int, bool]], decided: list[tuple[int, bool]]) -> bool:
    remaining = iter(decided)
    return all(end in remaining for end in ends)


def _show(ends: list[tuple[int, bool]]) -> str:
    return ", ".join(f"{'commit' if commit else 'abort'} at epoch {epoch}" for epoch, commit in ends) or "nothing"
