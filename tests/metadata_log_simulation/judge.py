"""What must hold of the controllers' log, whatever happens.

prefix      what a controller has got is a prefix of the log; a snapshot is what the log before it amounts to
one writer  an epoch has one controller, and from the moment it is won nothing of a lower one is written
no gap      offsets and numbers of the log follow on each other; nothing that was asked for is there twice
kept        what was confirmed is in the log, at the offset that was told, and was there when it was told
all or nothing  of an append that takes several batches all is there, or nothing
refused     what was answered with NOT_CONTROLLER is not in the log: whoever asked goes to the next controller with it
liveness    once everything works again, one controller is active, all have read everything, nobody waits
calm        nobody logs an error: operators would look for data of ZooKeeper that is gone, and none is
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oncelog.cluster.committed_log import Snapshot
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import Create, Operation
from oncelog.cluster.zookeeper_nodes import EPOCH, LOG
from oncelog.controller.checkpoint import decode_checkpoint
from oncelog.controller.image import Image
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.replay import Replay
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    LeaderChangeMessage,
)
from oncelog.protocol.schema import Message
from tests.metadata_log_simulation.fake_zookeeper import Ensemble


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Judge:
    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._leaders: dict[int, int] = {}
        self._read = 0
        self._log: list[bytes] = []
        self._known: set[bytes] = set()
        self._offsets: dict[str, int] = {}
        """Of values by where their batches begin, without those of metadata transactions that were aborted."""
        self._in_transaction: list[str] | None = None
        self._appended: list[Sequence[str]] = []
        ensemble.on_commit = self._on_commit
        self.refused: set[str] = set()
        self._errors = _Errors()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """To what is logged meanwhile."""
        logger = logging.getLogger("oncelog")
        logger.addHandler(self._errors)
        try:
            yield
        finally:
            logger.removeHandler(self._errors)

    def log(self) -> list[bytes]:
        """Every batch that was ever committed, in order."""
        for path in self._ensemble.created_in_order[self._read :]:
            self._read += 1
            if path.startswith(f"{LOG}/"):
                assert int(path.rpartition("/")[2]) == len(self._log), "no gap: numbers of log nodes"
                self._take(self._ensemble.created[path].partition(b"\n")[2])
        return self._log

    def _take(self, batch: bytes) -> None:
        self._log.append(batch)
        self._known.add(batch)
        for each in read_batches(batch):
            for record in each.records:
                self._note(record.known(), each.header.base_offset)

    def _note(self, record: Message, offset: int) -> None:
        if isinstance(record, ConfigRecord):
            value = record.value or ""
            assert value not in self._offsets, "no gap: a value is there twice"
            self._offsets[value] = offset
            if self._in_transaction is not None:
                self._in_transaction.append(value)
        elif isinstance(record, BeginTransactionRecord):
            assert self._in_transaction is None, "all or nothing: a transaction begins inside another one"
            self._in_transaction = []
        elif isinstance(record, AbortTransactionRecord):
            for value in self._in_transaction or ():
                del self._offsets[value]
            self._in_transaction = None
        elif isinstance(record, EndTransactionRecord):
            self._in_transaction = None

    def image_at(self, end_offset: int) -> Image:
        replay = Replay()
        for batch in self.log():
            if read_header(batch).base_offset >= end_offset:
                break
            for each in read_batches(batch):
                for record in each.records:
                    replay.apply(record.known())
        return replay.image()

    # During a history

    def _on_commit(self, operations: Sequence[Operation]) -> None:
        epoch = self._ensemble.read(EPOCH)
        for operation in operations:
            if isinstance(operation, Create) and operation.path.startswith(f"{LOG}/") and epoch is not None:
                stamped = int(operation.data.split(b" ", 1)[0])
                assert stamped == int(epoch.data), "one writer: a controller that was replaced has written"

    def on_batch(self, batch: bytes) -> None:
        self.log()
        assert batch in self._known, "prefix: a batch was handed over that is not committed"

    def on_snapshot(self, snapshot: Snapshot) -> None:
        image = decode_checkpoint(snapshot.data).image
        assert image == self.image_at(snapshot.name.end_offset), "prefix: a snapshot differs from the log before it"

    def on_active(self, leader: Leader) -> None:
        before = self._leaders.setdefault(leader.epoch, leader.node_id)
        assert before == leader.node_id, "one writer: two controllers of one epoch"

    def on_append(self, values: Sequence[str]) -> None:
        self._appended.append(values)

    def on_confirmed(self, values: Sequence[str], offset: int) -> None:
        self.log()
        assert self._offsets.get(values[0]) == offset, "kept: confirmed, but not in the log at that offset"
        assert self._offsets.keys() >= set(values), "kept: confirmed, but only some of it is in the log"

    # At the end

    def check(self) -> None:
        assert not self._errors.texts, f"calm: {self._errors.texts[0]}"
        assert self.refused.isdisjoint(self._offsets), "refused: the log has it all the same"
        assert self._in_transaction is None, "all or nothing: nobody has ended a transaction that broke off"
        for values in self._appended:
            assert len(self._offsets.keys() & set(values)) in (0, len(values)), (
                "all or nothing: some of an append is there"
            )
        offset = epoch = 0
        writers: dict[int, int] = {}
        for batch in self.log():
            header = read_header(batch)
            assert header.base_offset == offset, "no gap: offsets"
            assert header.leader_epoch >= epoch, "one writer: an epoch goes back"
            offset, is_new, epoch = header.next_offset, header.leader_epoch > epoch, header.leader_epoch
            for each in read_batches(batch):
                if is_new:
                    leader_change = each.controls[0]
                    assert isinstance(leader_change, LeaderChangeMessage)
                    writers[epoch] = leader_change.leader_id
        for path, data in self._ensemble.created.items():
            if path.startswith(f"{LOG}/"):
                stamped_epoch, node_id, _ = map(int, data.partition(b"\n")[0].split())
                assert writers[stamped_epoch] == node_id, "one writer: a batch of somebody else"
