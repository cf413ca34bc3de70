"""What clients asked for and what the broker has answered: all that may be held against it.

A transaction is known to be committed when the broker said so, whether the client got the answer or not. It is known
to be aborted when no request to commit it has ever reached the broker, or every one was turned down for good. In
between, both is right, as long as it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from tests.simulation.removals import Removals
from tests.simulation.wire import Identity, Place, Seen

COMMIT_REFUSED: Final = frozenset({47, 48, 49, 90, 51, 14})
"""Answers to EndTxn after which that request will not have any effect. An append error (15, 16) leaves it open."""


class Violation(AssertionError):
    """A named promise was broken."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Fate(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    EITHER = "committed or aborted"


@dataclass(eq=False)
class Transaction:
    name: str
    transactional_id: str
    records: dict[Place, list[str]] = field(default_factory=dict)
    offsets: dict[tuple[str, Place], int] = field(default_factory=dict)
    """By group and partition."""
    commit_arrived: bool = False
    said_committed: bool = False
    said_aborted: bool = False
    undecided_commits: int = 0
    refused_to_owner: bool = False
    """The producer was told that it may not commit this, though nobody has replaced it."""

    @property
    def fate(self) -> Fate:
        if self.said_committed:
            return Fate.COMMITTED
        if not self.commit_arrived or not self.undecided_commits:
            return Fate.ABORTED
        return Fate.EITHER


@dataclass(eq=False)
class SentRecord:
    value: str
    place: Place
    order: tuple[int, int]
    """Of its producer: which incarnation of it by the epoch it was given, and which record of that."""
    producer: str
    transaction: Transaction | None
    arrived: bool = False
    acknowledged_at: int | None = None
    never_to_be_seen: bool = False
    is_doomed: bool = False
    """Sent to a topic that will be deleted: nothing is promised."""
    key: str | None = None
    sent_ms: int = 0
    """When it was sent for the first time."""


class Model:
    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.records: dict[str, SentRecord] = {}
        self.owners: dict[int, str] = {}
        """Who was given a producer id."""
        self.identities: dict[str, Identity] = {}
        """The newest identity of each transactional id."""
        self.past_ids: dict[str, set[int]] = {}
        self.holders: dict[str, str] = {}
        """The instance that was the last to be initialised as a new one."""
        self.ids_are_forgotten = False
        """Whether transactional ids expire."""
        self.grants = 0
        self.offsets_read: dict[tuple[str, Place], int] = {}
        """The newest committed offset that the broker has told anybody."""
        self.undecided: set[int] = set()
        """Producer ids that have had a transaction of which no coordinator knows. It ends without a decision: an
        operator aborts it with WriteTxnMarkers, or the broker at its start after a crash."""
        self.removals = Removals()
        self.found_at: dict[str, tuple[Place, int]] = {}
        """Where readers have seen a record."""
        self.problems: list[Violation] = []

    def violated(self, invariant: str, detail: str) -> None:
        self.problems.append(Violation(invariant, detail))

    # -- transactions

    def begin(self, name: str, transactional_id: str) -> Transaction:
        transaction = Transaction(name, transactional_id)
        self.transactions.append(transaction)
        return transaction

    def ending(
        self, transaction: Transaction, commit: bool, holder: str
    ) -> tuple[Callable[[], None], Callable[[Any], None]]:
        """Witnesses of one EndTxn by `holder`: its arrival and its answer."""

        def arrived() -> None:
            if commit:
                transaction.commit_arrived = True
                transaction.undecided_commits += 1

        def answered(response: Any) -> None:
            code = response.error_code
            if code == 0:
                self._ended(transaction, commit)
                if response.producer_id >= 0:
                    identity = Identity(response.producer_id, response.producer_epoch)
                    self.given_identity(transaction.transactional_id, identity, is_new=False, holder=holder)
            elif commit and code in COMMIT_REFUSED:
                transaction.undecided_commits -= 1

        return arrived, answered

    def _ended(self, transaction: Transaction, commit: bool) -> None:
        if commit:
            transaction.said_committed = True
        else:
            transaction.said_aborted = True
        if transaction.said_committed and transaction.said_aborted:
            self.violated("all-or-nothing", f"{transaction.name} was said to be committed and to be aborted")

    # -- identities

    def given_identity(self, transactional_id: str | None, identity: Identity, *, is_new: bool, holder: str) -> None:
        """InitProducerId was answered. `is_new`: the caller named no identity as its own, and must get a fresh one."""
        if transactional_id is None:
            self._check_owner(identity, holder)
            return
        before = self.identities.get(transactional_id)
        self._granted(transactional_id, identity, is_new=is_new)
        begins_anew = before is not None and before.producer_id != identity.producer_id and identity.epoch == 0
        if is_new or (begins_anew and self.ids_are_forgotten):  # as Kafka takes a request of before an id expired
            self.holders[transactional_id] = holder
        elif self.holders.get(transactional_id) != holder:
            newer = self.holders.get(transactional_id)
            self.violated("fenced-stays-fenced", f"{holder} got {identity} after {newer} had replaced it")

    def _check_owner(self, identity: Identity, owner: str) -> None:
        known = self.owners.setdefault(identity.producer_id, owner)
        if known != owner:
            self.violated("producer-ids-unique", f"producer id {identity.producer_id} of {known} was given to {owner}")

    def _granted(self, transactional_id: str, identity: Identity, *, is_new: bool) -> None:
        self._check_owner(identity, transactional_id)
        before = self.identities.get(transactional_id)
        past = self.past_ids.setdefault(transactional_id, set())
        if before is not None and before.producer_id != identity.producer_id:
            past.add(before.producer_id)
        elif before is not None and (identity.epoch < before.epoch or (is_new and identity.epoch == before.epoch)):
            self.violated("epochs-grow", f"{transactional_id} was given {identity} after {before}")
        if identity.producer_id in past:
            self.violated("epochs-grow", f"{transactional_id} was given {identity}, which it had left behind")
        self.identities[transactional_id] = identity

    def next_grant(self) -> int:
        self.grants += 1
        return self.grants

    # -- records

    def sent(self, record: SentRecord) -> None:
        self.records[record.value] = record
        if record.transaction is not None and not record.is_doomed:
            record.transaction.records.setdefault(record.place, []).append(record.value)

    def fate_of(self, record: SentRecord) -> Fate:
        if record.never_to_be_seen:
            return Fate.ABORTED
        if record.transaction is not None:
            return record.transaction.fate
        return Fate.COMMITTED if record.acknowledged_at is not None else Fate.EITHER

    def produced(self, values: dict[Place, list[str]]) -> tuple[Callable[[], None], Callable[[dict[Place, Any]], None]]:
        """Witnesses of one Produce."""

        def arrived() -> None:
            for names in values.values():
                for value in names:
                    self.records[value].arrived = True

        def answered(answers: dict[Place, Any]) -> None:
            for place, names in values.items():
                if answers[place].error_code == 0:
                    for i, value in enumerate(names):
                        self._acknowledged(self.records[value], answers[place].base_offset + i)

        return arrived, answered

    def _acknowledged(self, record: SentRecord, offset: int) -> None:
        if record.acknowledged_at not in (None, offset):
            self.violated(
                "no-duplicates",
                f"{record.value} was acknowledged at {record.acknowledged_at} and at {offset} of {record.place}",
            )
        record.acknowledged_at = offset

    # -- what readers see, at the moment they see it

    def seen(self, place: Place, records: Sequence[Seen]) -> None:
        for record in records:
            if record.value is not None:
                known = self.found_at.setdefault(record.value, (place, record.offset))
                if known != (place, record.offset):
                    self.violated("no-duplicates", f"{record.value} was read at {known} and at {place} {record.offset}")

    def missing(self, values: Iterable[str], view: Mapping[Place, Sequence[Seen]]) -> set[str]:
        """Those that are not in the view, without those that the broker may have removed."""
        there = {seen.value for records in view.values() for seen in records}
        absent = [self.records[value] for value in values if value not in there]
        shown = {
            (place, self.records[seen.value].key): seen.offset
            for place, records in view.items()
            for seen in records
            if seen.value in self.records
        }
        return {
            record.value
            for record in absent
            if not self.removals.may_be_missing(
                record, shown.get((record.place, record.key), -1), self._rivals_of(record)
            )
        }

    def _rivals_of(self, record: SentRecord) -> list[SentRecord]:
        if record.place not in self.removals.tables:
            return []
        return [
            rival
            for rival in self.records.values()
            if rival.place == record.place and rival.key == record.key and self.fate_of(rival) is not Fate.ABORTED
        ]

    def read_committed(self, place: Place, offset: int, value: str | None) -> None:
        record = self.records.get(value or "")
        if record is None:
            self.violated("committed-only", f"{value!r} at {place} {offset} was never sent")
            return
        if not record.arrived:
            self.violated("committed-only", f"{value} at {place} {offset} never reached the broker")
        if self.fate_of(record) is Fate.ABORTED:
            state = "was aborted" if record.transaction and record.transaction.said_aborted else "was not committed"
            self.violated("committed-only", f"{value} was read at {place} {offset}, but its transaction {state}")

    def read_offset(self, group_id: str, place: Place, offset: int) -> None:
        """A committed offset that the broker has answered."""
        if offset < 0:
            return
        self.offsets_read[group_id, place] = offset
        writers = [txn for txn in self.transactions if txn.offsets.get((group_id, place)) == offset]
        if writers and all(txn.fate is Fate.ABORTED for txn in writers):
            names = ", ".join(txn.name for txn in writers)
            self.violated("offsets-atomic", f"{group_id} has offset {offset} of {place}, but {names} did not commit")
        elif not writers:
            self.violated("offsets-atomic", f"{group_id} has offset {offset} of {place}, which nobody committed")
