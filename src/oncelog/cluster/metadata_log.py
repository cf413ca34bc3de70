"""The controllers' log: where metadata is decided. This module is the interface; who keeps the log is a choice.

    FileMetadataLog       one controller, Kafka's files in a data folder (`cluster.file_metadata_log`)
    ZooKeeperMetadataLog  several controllers, of which one is active (`cluster.zookeeper_log`)

One controller at a time is *active*. It has an epoch, and only it appends. Each controller, active or not, follows what
is committed. What is committed never changes, so that there is no divergence among those who read no further. All calls
and callbacks happen on the thread that owns the state.

    log.start(follower)          hands over snapshot and batches that are committed now, and from then on each new batch
    log.campaign()               this controller wants to be active as soon as nobody else is
    follower.on_leader(leader)   somebody else is active, nobody, or this controller: then it may append
    log.append(records)          promises the offset of the first record when they are committed

A batch is handed to the follower before the promise of its append is resolved: a controller applies records in one
place, whether it is active or not. When it loses its office, `on_leader` comes first. Then appends that are known not
to be written fail with NOT_CONTROLLER, and an append of which that is unknown keeps its promise open until it is found
in the log or nobody waits any longer. So an append can be confirmed after its controller has lost its office. One that
stays unknown fails with REQUEST_TIMED_OUT: whoever asked must look, since a repetition would be refused as done before.

An append is all or nothing for readers, however large it is: one that does not fit into one batch becomes a metadata
transaction. If it breaks off, the next active controller aborts it, before anybody else can append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oncelog.cluster.committed_log import CommittedLog, Snapshot
from oncelog.cluster.quorum_log import Leader
from oncelog.controller.image_records import VersionedRecord
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise


class Follower(Protocol):
    """What a controller does with the log."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot, which replaces everything that came before."""

    def on_committed(self, batch: bytes) -> None:
        """The next whole batch, of metadata records or of control records."""

    def on_leader(self, leader: Leader | None) -> None:
        """Who is active has changed. If it is this controller, all that was committed before has been handed over."""


class MetadataLog(Protocol):
    node_id: int
    committed: CommittedLog
    leader: Leader | None
    """The active controller with its epoch and address; None while nobody is known to be active."""

    @property
    def is_active(self) -> bool:
        """Whether this controller is active."""

    @property
    def epoch(self) -> int:
        """The highest epoch that is known. It never goes back."""

    @property
    def next_offset(self) -> int:
        """The offset that the first record of the next append will have, if this controller is still active then."""

    def start(self, follower: Follower) -> None: ...

    def campaign(self) -> None: ...

    def resign(self) -> None:
        """Give up the office, or the campaign. Appends that wait fail. `campaign` starts over."""

    def append(self, records: Sequence[VersionedRecord | bytes]) -> Promise[int | KafkaError]:
        """Records, or what they are encoded as. Appends are committed in the order of the calls. After one that fails
        none that was waiting is committed."""

    def write_snapshot(self, snapshot: Snapshot) -> Promise[KafkaError | None]:
        """Store what everything committed below the snapshot's offset amounts to, and forget the log before it.

        Where several controllers share the log, only the active one does this. One snapshot at a time.
        """

    def close(self) -> None:
        """Resign and stop. Nothing is called back afterwards."""


def no_longer_active(detail: str = "this controller is not active") -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, detail)


def outcome_unknown(reason: str) -> KafkaError:
    """The error of an append that may be in the log. Kafka's controllers answer with this code when they stop."""
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{reason}; look whether it was done all the same")
