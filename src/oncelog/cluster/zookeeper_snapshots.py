"""Snapshots of the metadata in ZooKeeper, as the active controller stores them.

Log nodes are deleted from the oldest on and parts from the last on. So a deletion that broke off is found and finished
by the next controller without listing nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from oncelog.cluster.committed_log import CommittedLog, Snapshot
from oncelog.cluster.zookeeper import Create, Delete, Node, Operation, SetData
from oncelog.cluster.zookeeper_nodes import (
    SNAPSHOT,
    SnapshotPointer,
    log_path,
    part_path,
    snapshot_id,
    snapshot_path,
)

PART_BYTES_MAX: Final = 900_000
DELETED_AT_ONCE_MAX: Final = 100


class NotStored(Exception):
    """What is in ZooKeeper is not what a controller can have left there. The log goes on without the snapshot."""


class StoredSnapshots:
    """Stores snapshots while this controller is active. Made anew each time it becomes active."""

    def __init__(
        self,
        committed: CommittedLog,
        get: Callable[[str], Awaitable[Node | None]],
        step: Callable[[Sequence[Operation]], Awaitable[None]],
        next_number: Callable[[], int],
    ) -> None:
        """`step` carries out a multi, and raises NotStored if it is refused. `next_number` is that of the next node."""
        self._committed = committed
        self._get = get
        self._step = step
        self._next_number = next_number
        self._oldest_number: int | None = None
        """Of the log nodes that are still there, as far as it was found out."""

    async def store(self, snapshot: Snapshot) -> None:
        name, data = snapshot
        pointer = await self._sweep(SnapshotPointer.of(await self._get(SNAPSHOT)))
        parts = [data[start : start + PART_BYTES_MAX] for start in range(0, len(data), PART_BYTES_MAX)]
        if name.end_offset > pointer.name.end_offset:
            id_ = snapshot_id(name)
            pointer = await self._point(pointer._replace(sweep=((id_, len(parts)),)))
            await self._step([Create(snapshot_path(id_))])
            for number, part in enumerate(parts):
                await self._step([Create(part_path(id_, number), part)])
            log = self._next_number() - self._committed.batches_from(name.end_offset)
            sweep = ((pointer.id, pointer.parts),) if pointer.is_set else ()
            pointer = await self._point(SnapshotPointer(name, len(parts), log, sweep, pointer.version))
            self._committed.shorten(snapshot)
            await self._sweep(pointer)

    async def _point(self, pointer: SnapshotPointer) -> SnapshotPointer:
        await self._step([SetData(SNAPSHOT, pointer.encode(), pointer.version)])
        return pointer._replace(version=pointer.version + 1)

    async def _sweep(self, pointer: SnapshotPointer) -> SnapshotPointer:
        """Delete what snapshots that are not in use have left, and the log before the one that is."""
        for id_, parts in pointer.sweep:
            paths = [part_path(id_, number) for number in reversed(range(parts))]
            await self._delete([*paths, snapshot_path(id_)])
        # The last node stays: the next append checks it.
        end = min(pointer.log, self._next_number() - 1)
        oldest = await self._find_oldest(end)
        await self._delete([log_path(number) for number in range(oldest, end)])
        self._oldest_number = max(oldest, end)
        return await self._point(pointer._replace(sweep=())) if pointer.sweep else pointer

    async def _delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETED_AT_ONCE_MAX):
            slice_ = paths[start : start + DELETED_AT_ONCE_MAX]
            try:
                await self._step([Delete(path) for path in slice_])
            except NotStored:
                # Some were never made, or somebody else has deleted them. Without the rest there would be no snapshot
                # any more.
                await self._step([Delete(path) for path in slice_ if await self._get(path) is not None])

    async def _find_oldest(self, end: int) -> int:
        """The first log node that is there, by bisection: those before it were deleted in order."""
        if self._oldest_number is not None:
            return self._oldest_number
        low, high = 0, max(end, 0)
        while low < high:
            middle = (low + high) // 2
            if await self._get(log_path(middle)) is None:
                low = middle + 1
            else:
                high = middle
        return low
