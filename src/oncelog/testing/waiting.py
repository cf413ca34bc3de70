"""Waiting for what a test means: an offset that is committed, a transaction that has ended, a group that is stable."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.core.errors import RETRIABLE, ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import Admin

T = TypeVar("T")
POLL_S: Final = 0.01
TIMEOUT_S: Final = 30.0
_ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_numbers: Final = itertools.count()


class TimedOut(AssertionError):
    """What a test waited for did not happen. The text has what was there instead."""


def unique_name(prefix: str = "topic") -> str:
    """A name that nobody else uses: not another test, nor another process that tests on the same broker."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def wait_until(look: Callable[[], T], wanted: Callable[[T], object], what: str, timeout_s: float) -> T:
    """Looks again and again. Errors that pass by themselves are waited for as well."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found: object
        try:
            found = value = look()
            if wanted(value):
                return value
        except KafkaError as error:
            if error.code not in RETRIABLE and error.code not in _NOT_YET:
                raise
            found = error
        if time.monotonic() > deadline_s:
            raise TimedOut(f"{what} did not come within {timeout_s:g} s; last seen: {found}")
        time.sleep(POLL_S)


_NOT_YET: Final = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Waits:
    """What `broker.wait` offers. `timeout_s` is for all of them, unless a call gives another."""

    def __init__(self, connect: Callable[[], Admin], timeout_s: float = TIMEOUT_S) -> None:
        self._connect = connect
        self._timeout_s = timeout_s

    def offset_committed(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float | None = None
    ) -> int:
        """Until the group has committed this offset of the partition or a later one. Returns it."""
        place = TopicPartition(topic, partition)
        with self._connect() as admin:

            def committed() -> int | None:
                found = admin.group_offsets(group).get(place)
                return None if found is None else found.offset

            found = wait_until(
                committed,
                lambda at: at is not None and at >= offset,
                f"offset {offset} of {place} in group {group}",
                self._limit(timeout_s),
            )
        return found or 0

    def transaction_ended(self, transactional_id: str, *, timeout_s: float | None = None) -> str:
        """Until the id has no open transaction and its markers are written. Returns its state, as CompleteCommit."""
        with self._connect() as admin:
            return wait_until(
                lambda: admin.describe_transactions([transactional_id])[transactional_id].state,
                lambda state: state in _ENDED,
                f"the end of the transaction of {transactional_id}",
                self._limit(timeout_s),
            )

    def group_stable(self, group: str, *, members: int | None = None, timeout_s: float | None = None) -> int:
        """Until the group is stable, with this number of members if one is given. Returns how many there are."""
        with self._connect() as admin:
            _, count = wait_until(
                lambda: _state_and_members(admin, group),
                lambda found: found[0] == "Stable" and members in (None, found[1]),
                f"a stable group {group}" + ("" if members is None else f" of {members}"),
                self._limit(timeout_s),
            )
        return count

    def records(self, topic: str, count: int, *, partition: int = 0, timeout_s: float | None = None) -> int:
        """Until the partition ends at this offset or later, which counts markers too. Returns where it ends."""
        from oncelog.client.admin import OffsetSpec

        place = TopicPartition(topic, partition)
        with self._connect() as admin:
            return wait_until(
                lambda: admin.list_offsets({place: OffsetSpec.LATEST})[place].offset,
                lambda end: end >= count,
                f"{count} records in {place}",
                self._limit(timeout_s),
            )

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


def _state_and_members(admin: Admin, group: str) -> tuple[str, int]:
    described = admin.describe_groups([group])[group]
    return described.state, len(described.members)
