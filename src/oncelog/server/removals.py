"""Partitions that are not kept any more: closed in slices, then a worker renames their folders.

Checkpoints are written without them at once. The first partition of the same name has to wait for that: clients that
ask for it before the deletion is answered are sent away until then (see `PartitionTable`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from oncelog.cluster.partitions import Closing
from oncelog.core.promise import Promise, gather
from oncelog.core.steps import at_once
from oncelog.server.log_upkeep import OURSELVES
from oncelog.storage.deletions import FolderRenames

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.context import HangUp

log = logging.getLogger("oncelog.server")


class Removals:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._closing: list[Closing] = []
        self._begun: list[Promise[None]] = []

    @property
    def are_begun(self) -> bool:
        """Whether a removal is under way: folders may still have their old names, or checkpoints name what is gone."""
        return bool(self._begun)

    @property
    def settled(self) -> Promise[None]:
        """Promises that folders which are to be renamed now have other names."""
        return gather(list(self._begun)).map(lambda _: None)

    def begin(self, closing: Closing) -> Promise[None]:
        """Promises that the folders have other names, and that no checkpoint names them unless it cannot be written."""
        self._closing.append(closing)
        closed: Promise[FolderRenames | HangUp] = self._broker.turns.begin(closing, OURSELVES, to_the_end=True)
        renamed = closed.chain(lambda renames: self._rename(closing, renames))
        self._begun.append(renamed)
        renamed.then(lambda _: self._begun.remove(renamed))
        return renamed

    def finish(self) -> None:
        """The broker stops: after a clean stop no folder of a deleted topic may be left under its name."""
        closing, self._closing = self._closing, []
        for each in closing:
            renames = at_once(each)
            renames.run()
            self._renamed(renames, None)

    def _rename(self, closing: Closing, renames: FolderRenames | HangUp) -> Promise[None]:
        self._closing.remove(closing)
        if not isinstance(renames, FolderRenames):
            return Promise.resolved(None)  # why is in the log; the next start sets the folders aside
        renamed = self._broker.worker.run(renames.run).map(lambda error: self._renamed(renames, error))
        return renamed.chain(lambda _: self._write_checkpoint())

    def _write_checkpoint(self) -> Promise[None]:
        if self._broker.stopped or not self._broker.log_dir.names_deleted_logs:
            return Promise.resolved(None)
        return self._broker.log_starts.save(()).map(lambda _: None)

    def _renamed(self, renames: FolderRenames, error: Exception | None) -> None:
        if error is not None:
            log.error("a deleted topic may be back after a power cut, and is then set aside: %s", error)
        self._broker.log_dir.deletions.add_renamed(renames)
