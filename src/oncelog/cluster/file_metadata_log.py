"""The controllers' log of a node that is alone: `__cluster_metadata-0` in its data folder, in Kafka's own files.

    <offset>.log, .index, ...          a log as any other, with a control batch LeaderChange at the start of each epoch
    <end offset>-<epoch>.checkpoint    snapshots: see `controller.checkpoint`
    quorum-state                       the epoch, and who leads in it

    {"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}

Each campaign is won, under a new epoch: nobody else can win one. A batch is committed when it is on disk. Batches that
are appended while an fsync runs share the next one.

The first fsync of an epoch has its first batches and, behind them, the names in the folder and in the data folder. So
nothing is committed in an epoch before `quorum-state` has it for good, and what a start has put into the data folder.
After a power cut before that, the epoch may be won again, and the log says nothing of the first time. If the log has a
higher epoch than `quorum-state`, it counts, here as for Kafka.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from oncelog.cluster.committed_log import CommittedLog, Snapshot, data_batches
from oncelog.cluster.kraft_metadata import SnapshotName, segment_files, snapshot_files
from oncelog.cluster.metadata_damage import damage_before_the_end
from oncelog.cluster.metadata_log import Follower, no_longer_active, outcome_unknown
from oncelog.cluster.quorum_log import TOPIC, TOPIC_ID, Leader
from oncelog.controller.checkpoint import Checkpoint, Quorum, encode_checkpoint
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import Image
from oncelog.controller.image_records import VersionedRecord
from oncelog.controller.metadata_batches import BatchWriter, read_batches
from oncelog.core.address import LOOPBACK, Address
from oncelog.core.clock import Scheduler
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition, uuid_to_text
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker, Worker
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.cluster_metadata import VotersRecord
from oncelog.protocol.primitives import MalformedRequest
from oncelog.storage import fsyncs
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.flush_work import FileNotOpened, FlushWork
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig

QUORUM_STATE: Final = "quorum-state"
OWN_ADDRESS: Final = Address(LOOPBACK, 9093)
"""It stands for the controller of a node that is alone, in the protocol. Nothing listens there."""
FLUSH_RETRY_MS: Final = 100
_OWNER_ONLY: Final = 0o700
"""The log has the keys of users, with which one could pose as the broker."""
_READ_BYTES: Final = 1 << 20
_CONFIG: Final = LogConfig(segment_bytes=1 << 30, record_validation="batch")

_AT_ONCE: Final = InlineWorker()

logger = logging.getLogger("oncelog.server")


class _Append(NamedTuple):
    first_offset: int
    end_offset: int
    batches: Sequence[bytes]
    promise: Promise[int | KafkaError]


class FileMetadataLog:
    """A `metadata_log.MetadataLog`. `start` reads files; raises KafkaError, InvalidMetadata or OSError if it cannot."""

    def __init__(
        self,
        data_folder: Path,
        *,
        node_id: int,
        address: Address,
        scheduler: Scheduler,
        worker: Worker,
        voters: VotersRecord | None = None,
        on_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_fault` is told why this controller cannot decide until it is started again."""
        self.node_id = node_id
        self.committed = CommittedLog()
        self.leader: Leader | None = None
        self._folder = data_folder / f"{TOPIC}-0"
        self.address = address
        self._scheduler = scheduler
        self._worker = worker
        self._voters = voters
        self._on_fault = on_fault
        self._epoch = 0
        self._waiting: deque[_Append] = deque()
        self._is_flushing = False
        self.torn_bytes = 0
        """How many bytes at the end of the log were torn or damaged when it was opened."""
        self._log: Log | None = None
        self._follower: Follower | None = None

    @property
    def exists(self) -> bool:
        """Whether there are files of a metadata log, of this controller or of another one."""
        return self._folder.is_dir()

    @property
    def is_active(self) -> bool:
        return self.leader is not None

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def next_offset(self) -> int:
        return self._waiting[-1].end_offset if self._waiting else self.committed.end_offset

    # Reading

    def start(self, follower: Follower) -> None:
        self._follower = follower
        snapshot = self._newest_snapshot()
        self._log = log = self._log or self._open()
        if snapshot is not None:
            try:
                self._load(log, follower, snapshot)
            except (KafkaError, InvalidMetadata, MalformedRequest) as error:
                raise InvalidMetadata(
                    f"{self._folder / snapshot_file_name(snapshot.name)} cannot be read: {error}. Restore "
                    f"{self._folder} from a copy. A node that is alone can do without it: if you remove that folder, "
                    "topics are taken over from theirs, and settings, users, ACLs and quotas are lost"
                ) from error
        offset = self.committed.end_offset
        if not log.log_start_offset <= offset:
            raise InvalidMetadata(
                f"{self._folder} has the log from offset {log.log_start_offset} on, and no snapshot that reaches so far"
            )
        while offset < log.log_end_offset:
            data = log.read(offset, _READ_BYTES, end_offset=log.log_end_offset).data
            for position, header in iter_headers(data):
                self._commit(bytes(data[position : position + header.size_bytes]))
            offset = self.committed.end_offset
        self._epoch = max(self.committed.last_epoch, read_quorum_epoch(self._folder))
        voters = self.committed.quorum.voters
        others = [
            each.voter_id for each in (voters.voters if voters is not None else ()) if each.voter_id != self.node_id
        ]
        if others:
            raise InvalidMetadata(
                f"{self._folder} is of a quorum of several controllers, with {', '.join(map(str, others))}, and this "
                "one would decide without them. Run controllers of Apache Kafka there, and remove the others with "
                "kafka-metadata-quorum.sh remove-controller"
            )

    def begin_anew(self, image: Image) -> None:
        """An image replaces all that the log says, at once: in a folder of other controllers, or one that has lost its
        end. Before `campaign`."""
        self._log = log = self._log or self._open(is_own=False)
        newest = max(snapshot_files(self._folder), default=SnapshotName(0, 0))
        epochs = (log.leader_epochs.latest_epoch, newest.epoch, self._epoch, read_quorum_epoch(self._folder))
        name = SnapshotName(max(log.log_end_offset, newest.end_offset, 1), max(epochs) + 1)
        now_ms = self._scheduler.now_ms()
        quorum = self._found_quorum() if self._follower is None else self.committed.quorum
        checkpoint = Checkpoint(image, quorum, now_ms)
        snapshot = Snapshot(name, encode_checkpoint(checkpoint, epoch=name.epoch, timestamp_ms=now_ms))
        self._folder.chmod(_OWNER_ONLY)
        self._replace(snapshot)
        if self._follower is not None:
            self._load(log, self._follower, snapshot)
            self._epoch = name.epoch

    def _found_quorum(self) -> Quorum:
        """The kraft.version as the folder was formatted. Voters that are others are not taken over."""
        quorum, snapshots = Quorum(), snapshot_files(self._folder)
        newest = [snapshots[max(snapshots)]] if snapshots else []
        try:
            for path in [*newest, *segment_files(self._folder)]:
                for batch in read_batches(path.read_bytes()):
                    for control in batch.controls:
                        quorum = quorum.after(control)
        except (KafkaError, MalformedRequest) as error:
            logger.warning("the voters in %s are not read to its end: %s", self._folder, error)
        voters = [] if quorum.voters is None else [each.voter_id for each in quorum.voters.voters]
        return quorum if voters == [self.node_id] else Quorum()

    def _open(self, *, is_own: bool = True) -> Log:
        place = LogPlace(self._folder, TopicPartition(TOPIC, 0), self._scheduler.now_ms())
        if self._folder.is_dir():
            if is_own:
                self._check_not_damaged()
            found_bytes = _segment_bytes(self._folder)
            log = Log(place, _CONFIG, clean=False)
            self.torn_bytes = found_bytes - _segment_bytes(self._folder)
            return log
        log = Log.create(place, _CONFIG, TOPIC_ID)
        self._folder.chmod(_OWNER_ONLY)
        return log

    def _check_not_damaged(self) -> None:
        """A log that is broken in the middle is no trace of a crash, so not ours to repair by guessing."""
        damage = damage_before_the_end(segment_files(self._folder))
        if damage is not None:
            path, position = damage
            raise InvalidMetadata(
                f"{path} is damaged at byte {position}, with intact changes behind it. Restore {self._folder} from a "
                "copy, or give up every change from there on: remove the segments after this one, and "
                f"'truncate -s {position + 1} {path}'. Settings are then as before these changes, also those of "
                "retention, and so are users and ACLs; topics that were deleted are back, without records; topics "
                "that were created keep their records and lose their settings. Producer ids and epochs are not affected"
            )

    def _newest_snapshot(self) -> Snapshot | None:
        files = snapshot_files(self._folder) if self._folder.is_dir() else {}
        if not files:
            return None
        name = max(files)
        return Snapshot(name, files[name].read_bytes())

    def _load(self, log: Log, follower: Follower, snapshot: Snapshot) -> None:
        self.committed.load(snapshot)
        follower.on_snapshot(snapshot)
        if log.log_end_offset < snapshot.name.end_offset:
            # A controller of Kafka that was far behind has got a snapshot and nothing else yet.
            log.truncate_fully_and_start_at(snapshot.name.end_offset, now_ms=self._scheduler.now_ms())

    def _commit(self, batch: bytes) -> None:
        self.committed.add(batch)
        if self._follower is not None:
            self._follower.on_committed(batch)

    # Writing

    def campaign(self) -> None:
        """Raises KafkaError if the files cannot be written."""
        if self._log is None or self.leader is not None:
            return
        epoch = max(self._epoch, self.committed.last_epoch) + 1
        try:
            write_quorum_state(self._folder, self.node_id, epoch, folder_follows=True)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{QUORUM_STATE} cannot be written: {error}") from error
        self._log.note_new_name()
        self._epoch = epoch
        now_ms = self._scheduler.now_ms()
        batches = self.committed.first_batches(self.node_id, epoch, self._voters, timestamp_ms=now_ms)
        first = self._write(batches)
        if first.done and isinstance(first.value, KafkaError):
            raise first.value
        # At once: what the controller appends first shares the fsync of these batches. If that fails, the office ends.
        if self._follower is not None:
            self.leader = Leader(self.node_id, epoch, self.address)
            self._follower.on_leader(self.leader)

    def append(self, records: Sequence[VersionedRecord | bytes]) -> Promise[int | KafkaError]:
        if self.leader is None:
            return Promise.resolved(no_longer_active())
        writer = BatchWriter(
            next_offset=self.next_offset, epoch=self.leader.epoch, timestamp_ms=self._scheduler.now_ms()
        )
        try:
            batches = data_batches(records, writer)
        except KafkaError as error:
            return Promise.resolved(error)
        return self._write(batches)

    def _write(self, batches: Sequence[bytes]) -> Promise[int | KafkaError]:
        if self._log is None:
            return Promise.resolved(no_longer_active())
        now_ms = self._scheduler.now_ms()
        try:
            if self._log.has_failed:
                # An append that failed half way may have left its batch, of which nobody was told.
                self._log.truncate_to(self.next_offset, now_ms=now_ms)
            info = self._log.append_as_follower(b"".join(batches), leader_epoch=self._epoch, now_ms=now_ms)
        except KafkaError as error:
            if not self._log.has_failed:
                return Promise.resolved(error)
            if not self._log.can_be_repaired:
                self._fail(error)
            # The batch may be there, and a start that finds it goes on with it.
            return Promise.resolved(outcome_unknown(error.message))
        append = _Append(info.first_offset, info.last_offset + 1, batches, Promise())
        self._waiting.append(append)
        self._flush()
        return append.promise

    def _flush(self) -> None:
        if self._is_flushing or self._log is None:
            return
        self._is_flushing = True
        # Not at once: what else is appended in this turn of the loop comes along.
        self._scheduler.call_later_ms(0, self._begin_flush)

    def _begin_flush(self) -> None:
        work = None if self._log is None else self._log.prepare_flush(batches_only=True)
        if work is None:
            self._is_flushing = False
        else:
            # Without fsyncs it takes less time than a worker to wake up.
            worker = self._worker if fsyncs.are_needed() else _AT_ONCE
            worker.run(work.run).then(partial(self._flushed, work))

    def _flushed(self, work: FlushWork, error: Exception | None) -> None:
        self._is_flushing = False
        if self._log is None:
            return
        self._log.finish_flush(work, error)
        if isinstance(error, FileNotOpened):
            self._is_flushing = True
            self._scheduler.call_later_ms(FLUSH_RETRY_MS, self._begin_flush)
        elif error is not None:
            self._fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}"))
        else:
            self._commit_up_to(work.end_offset)

    def _commit_up_to(self, end_offset: int) -> None:
        if self._waiting and self._waiting[-1].end_offset > end_offset:
            self._flush()
        while self._waiting and self._waiting[0].end_offset <= end_offset:
            append = self._waiting.popleft()
            for batch in append.batches:
                self._commit(batch)
            append.promise.resolve(append.first_offset)

    def _fail(self, error: KafkaError) -> None:
        """What is on disk of the appends that wait is unknown: the next start will show it."""
        logger.error("the controller stops deciding: %s", error.message)
        self._leave(error.message)
        self._on_fault(error.message)

    def _leave(self, reason: str) -> None:
        was_active, self.leader = self.leader is not None, None
        if was_active and self._follower is not None:
            self._follower.on_leader(None)
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            append.promise.resolve(outcome_unknown(reason))

    def resign(self) -> None:
        """Appends that are being flushed go on: nobody else can write this log."""
        if self.leader is not None:
            self.leader = None
            if self._follower is not None:
                self._follower.on_leader(None)

    # Snapshots

    def write_snapshot(self, snapshot: Snapshot) -> Promise[KafkaError | None]:
        return self._worker.run(partial(self._replace, snapshot)).map(partial(self._stored, snapshot))

    def write_last_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot before the log is closed. Raises OSError."""
        self._replace(snapshot)
        self._stored(snapshot, None)

    def _replace(self, snapshot: Snapshot) -> None:
        replace_file(self._folder / snapshot_file_name(snapshot.name), snapshot.data)

    def _stored(self, snapshot: Snapshot, error: Exception | None) -> KafkaError | None:
        if error is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"a snapshot cannot be written: {error}")
        if self._log is None:
            return no_longer_active("the controller has stopped")
        self.committed.shorten(snapshot)
        try:
            self._log.roll(self._scheduler.now_ms())
            self._log.delete_records(snapshot.name.end_offset)
            for name, path in snapshot_files(self._folder).items():
                if name < snapshot.name:
                    path.unlink()
        except (KafkaError, OSError) as failure:
            logger.warning("metadata before offset %d is kept: %s", snapshot.name.end_offset, failure)
        return None

    def close(self, *, clean: bool = True) -> None:
        self._follower = None
        self._leave("the controller stops")
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close(clean)
        except (KafkaError, OSError) as error:
            logger.error("the metadata log could not be closed in order: %s", error)


def _segment_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in segment_files(folder))


def snapshot_file_name(name: SnapshotName) -> str:
    return f"{name.end_offset:020}-{name.epoch:010}.checkpoint"


def read_quorum_epoch(folder: Path) -> int:
    """The epoch of the quorum-state file, 0 if there is none. Raises InvalidMetadata."""
    path = folder / QUORUM_STATE
    try:
        return int(json.loads(path.read_bytes())["leaderEpoch"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidMetadata(
            f"{path} is empty or damaged ({error}). Remove it: the epoch is then taken from the log beside it"
        ) from error


def write_quorum_state(folder: Path, leader_id: int, epoch: int, *, folder_follows: bool = False) -> None:
    """`folder_follows`: see `replace_file`."""
    state = {
        "leaderId": leader_id,
        "leaderEpoch": epoch,
        "votedId": -1,
        "votedDirectoryId": uuid_to_text(UUID(int=0)),
        "data_version": 1,
    }
    content = json.dumps(state, separators=(",", ":")).encode()
    replace_file(folder / QUORUM_STATE, content, folder_follows=folder_follows)
