"""What tests of the controllers' log share: a follower that keeps an image, and records to append."""

from __future__ import annotations

import uuid

from oncelog.cluster.committed_log import CommittedLog, Snapshot
from oncelog.cluster.kraft_metadata import SnapshotName
from oncelog.cluster.quorum_log import Leader
from oncelog.controller.checkpoint import Checkpoint, Quorum, decode_checkpoint, encode_checkpoint
from oncelog.controller.image import Image
from oncelog.controller.image_records import VersionedRecord
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.replay import Replay
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.cluster_metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    VersionRange,
    VoterEndpoint,
    VotersRecord,
    VotersVoter,
)

LEVEL = VersionedRecord(FeatureLevelRecord(name="metadata.version", feature_level=30), 0)


def setting(value: str, topic: str = "orders", name: str = "retention.ms") -> VersionedRecord:
    return VersionedRecord(ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value), 0)


def voter(node_id: int, port: int = 9093) -> VotersVoter:
    return VotersVoter(
        voter_id=node_id,
        voter_directory_id=uuid.UUID(int=100 + node_id),
        endpoints=[VoterEndpoint(name="CONTROLLER", host="127.0.0.1", port=port)],
        k_raft_version_feature=VersionRange(min_supported_version=0, max_supported_version=1),
    )


def voters(*node_ids: int) -> VotersRecord:
    return VotersRecord(voters=[voter(node_id) for node_id in node_ids])


class ImageKeeper:
    """A `metadata_log.Follower`: an image, and everything that was handed over."""

    def __init__(self) -> None:
        self.replay = Replay()
        self.quorum = Quorum()
        self.batches: list[bytes] = []
        self.snapshots: list[SnapshotName] = []
        self.leaders: list[Leader | None] = []
        self.end_offset = 0

    @property
    def image(self) -> Image:
        return self.replay.image()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        loaded = decode_checkpoint(snapshot.data)
        self.replay, self.quorum = Replay(loaded.image), loaded.quorum
        self.snapshots.append(snapshot.name)
        self.end_offset = snapshot.name.end_offset

    def on_committed(self, batch: bytes) -> None:
        for each in read_batches(batch):
            for record in each.records:
                self.replay.apply(record.known())
            for control in each.controls:
                self.quorum = self.quorum.after(control)
        self.batches.append(batch)
        self.end_offset = read_header(batch).next_offset

    def on_leader(self, leader: Leader | None) -> None:
        self.leaders.append(leader)


def snapshot_of(committed: CommittedLog, image: Image, *, timestamp_ms: int = 0) -> Snapshot:
    name = SnapshotName(committed.end_offset, committed.last_epoch)
    checkpoint = Checkpoint(image, committed.quorum, timestamp_ms)
    return Snapshot(name, encode_checkpoint(checkpoint, epoch=name.epoch, timestamp_ms=timestamp_ms))
