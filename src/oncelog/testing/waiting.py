"""Waiting for what a test means: an offset that is committed, a transaction that has ended, a group that is stable.

As in `oncelog.client`, the coroutines are the implementation, and the blocking calls run them on the background loop.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from oncelog.core.errors import RETRIABLE, ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.admin import AsyncAdmin

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
ClientSettings = Callable[[], Mapping[str, Any]]
"""Settings of a client, asked for anew by each wait: some brokers of a cluster may be down."""
POLL_S: Final = 0.01
LAST_LOOK_S: Final = 0.2
"""For an answer that is asked for just before the time is over, and for the client to say what it has waited for."""
TIMEOUT_S: Final = 60.0
_ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_NOT_YET: Final = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_numbers: Final = itertools.count()


class TimedOut(AssertionError):
    """What a test waited for did not happen. The text has what was there instead."""


def unique_name(prefix: str = "topic") -> str:
    """A name that nobody else uses: not another test, nor another process that tests on the same broker."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


async def wait_until(look: Callable[[], Awaitable[T]], wanted: Callable[[T], object], what: str, timeout_s: float) -> T:
    """Looks again and again. Errors that pass by themselves are waited for as well."""
    import asyncio

    deadline_s = time.monotonic() + timeout_s
    found: object = "no answer"
    while True:
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic()) + LAST_LOOK_S):
                found = value = await look()
            if wanted(value):
                return value
        except TimeoutError:
            pass
        except KafkaError as error:
            if error.code not in RETRIABLE and error.code not in _NOT_YET:
                raise
            found = error
        if time.monotonic() > deadline_s:
            raise TimedOut(f"{what} did not come within {timeout_s:g} s; last seen: {found}")
        await asyncio.sleep(POLL_S)


class AsyncWaits:
    """What `broker.wait_async` offers, to be awaited. `timeout_s` is for all of them, unless a call gives another."""

    def __init__(self, settings: ClientSettings, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s

    async def offset_committed(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float | None = None
    ) -> int:
        """Until the group has committed this offset of the partition or a later one. Returns it."""
        place = TopicPartition(topic, partition)

        async def committed(admin: AsyncAdmin) -> int | None:
            found = (await admin.group_offsets(group)).get(place)
            return None if found is None else found.offset

        what = f"offset {offset} of {place} in group {group}"
        return await self._until(committed, lambda at: at is not None and at >= offset, what, timeout_s) or 0

    async def transaction_ended(self, transactional_id: str, *, timeout_s: float | None = None) -> str:
        """Until the id has no open transaction and its markers are written. Returns its state, as CompleteCommit."""

        async def state(admin: AsyncAdmin) -> str:
            return (await admin.describe_transactions([transactional_id]))[transactional_id].state

        what = f"the end of the transaction of {transactional_id}"
        return await self._until(state, lambda found: found in _ENDED, what, timeout_s)

    async def group_stable(self, group: str, *, members: int | None = None, timeout_s: float | None = None) -> int:
        """Until the group is stable, with this number of members if one is given. Returns how many there are."""

        async def state_and_members(admin: AsyncAdmin) -> tuple[str, int]:
            described = (await admin.describe_groups([group]))[group]
            return described.state, len(described.members)

        _, count = await self._until(
            state_and_members,
            lambda found: found[0] == "Stable" and members in (None, found[1]),
            f"a stable group {group}" + ("" if members is None else f" of {members}"),
            timeout_s,
        )
        return count

    async def records(self, topic: str, count: int, *, partition: int = 0, timeout_s: float | None = None) -> int:
        """Until the partition ends at this offset or later, which counts markers too. Returns where it ends."""
        from oncelog.client.admin import OffsetSpec

        place = TopicPartition(topic, partition)

        async def end(admin: AsyncAdmin) -> int:
            return (await admin.list_offsets({place: OffsetSpec.LATEST}))[place].offset

        return await self._until(end, lambda found: found >= count, f"{count} records in {place}", timeout_s)

    async def _until(
        self,
        look: Callable[[AsyncAdmin], Awaitable[T]],
        wanted: Callable[[T], object],
        what: str,
        timeout_s: float | None,
    ) -> T:
        from oncelog.client.admin import AsyncAdmin

        limit_s = self._timeout_s if timeout_s is None else timeout_s
        settings = {**self._settings(), "default.api.timeout.ms": max(1, int(limit_s * 1000))}
        async with AsyncAdmin.connect(settings) as admin:
            return await wait_until(lambda: look(admin), wanted, what, limit_s)


def blocking(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """As `client.blocking`, which takes longer to import than a broker to start."""

    def call(waits: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        from oncelog.client.loop import background

        return background().run(method(waits.core, *args, **kwargs))

    return update_wrapper(call, method)


class Waits:
    """What `broker.wait` offers: the calls of `broker.wait_async`, which block."""

    def __init__(self, core: AsyncWaits) -> None:
        self.core = core

    offset_committed = blocking(AsyncWaits.offset_committed)
    transaction_ended = blocking(AsyncWaits.transaction_ended)
    group_stable = blocking(AsyncWaits.group_stable)
    records = blocking(AsyncWaits.records)
