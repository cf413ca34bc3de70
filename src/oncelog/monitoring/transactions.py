"""Transactional ids as their coordinators know them: state, age, time-out, partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from oncelog.client.admin import Admin, TransactionDescription, TransactionListing
from oncelog.coordinator.txn.state import NAME_OF
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError

STATES: Final = tuple(NAME_OF.values())
DECIDED_STATES: Final = frozenset({"PrepareCommit", "PrepareAbort"})
"""The coordinator has decided and writes the markers. Nothing can change the outcome any more."""
OPEN_STATES: Final = DECIDED_STATES | {"Ongoing"}


@dataclass(frozen=True, slots=True)
class Transaction:
    listing: TransactionListing
    description: TransactionDescription | None
    """None if nothing is open, or if it was not asked for."""

    @property
    def transactional_id(self) -> str:
        return self.listing.transactional_id

    @property
    def is_open(self) -> bool:
        return self.listing.state in OPEN_STATES

    def age_ms(self, now_ms: int) -> int | None:
        return age_ms(self.description, now_ms)

    def as_row(self, now_ms: int) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "state": self.listing.state,
            "producer_id": self.listing.producer_id,
            "coordinator": self.listing.coordinator_id,
            "age_ms": self.age_ms(now_ms),
            "partitions": len(self.description.partitions) if self.description is not None else None,
        }


def age_ms(description: TransactionDescription | None, now_ms: int) -> int | None:
    """Since the transaction began; None if none is open: coordinators tell when the last one began, too."""
    if description is None or description.start_time_ms < 0 or description.state not in OPEN_STATES:
        return None
    return max(now_ms - description.start_time_ms, 0)


def description_row(found: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_time_ms if found.start_time_ms >= 0 else None,
        "age_ms": age_ms(found, now_ms),
        "partitions": [str(partition) for partition in sorted(found.partitions)],
        "coordinator": found.coordinator,
    }


def list_transactions(
    admin: Admin, *, states: Iterable[str] = (), older_than_ms: int = -1, pattern: str | None = None
) -> list[Transaction]:
    """The transactional ids of all coordinators; what is open is described, with a request for each."""
    listings = admin.list_transactions(states=states, running_longer_than_ms=older_than_ms, pattern=pattern)
    described = describe_known(admin, [found.transactional_id for found in listings if found.state in OPEN_STATES])
    return [Transaction(found, described.get(found.transactional_id)) for found in listings]


def describe_known(admin: Admin, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
    """Descriptions by id. Ids that have expired meanwhile are left out."""
    found: dict[str, TransactionDescription] = {}
    for transactional_id in transactional_ids:
        try:
            found |= admin.describe_transactions([transactional_id])
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return found
