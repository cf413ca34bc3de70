"""What Kafka's controllers left in `__cluster_metadata-0` of a data folder, as an image.

The newest snapshot counts, and the log behind it. A snapshot is named after the offset behind what it contains and its
epoch, and holds record batches as a log does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from oncelog.cluster.metadata_damage import damage_before_the_end
from oncelog.controller.checkpoint import decode_checkpoint
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.replay import Replay
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import CorruptBatchError
from oncelog.protocol.messages.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    record_types,
)
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.storage.segment_names import LOG_SUFFIX

log = logging.getLogger("oncelog.server")

_SETTINGS: Final = record_types(ConfigRecord, BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotName(NamedTuple):
    end_offset: int
    epoch: int


class LoadedImage(NamedTuple):
    """An image read from disk. If it is not complete, records at its end could not be read: of topics, settings,
    anything."""

    image: Image
    is_complete: bool
    end_offset: int = 0
    is_torn: bool = False
    """Whether the last segment does not end with a whole batch: what a kill leaves, or damage."""


NOTHING_LOADED: Final = LoadedImage(EMPTY_IMAGE, is_complete=False)


def load_image(data_folder: Path) -> LoadedImage:
    """The image as far as it can be read. Errors are logged."""
    folder = data_folder / f"{CLUSTER_METADATA_TOPIC}-0"
    return _Loader(folder).load() if folder.is_dir() else NOTHING_LOADED


def load_settings(data_folder: Path) -> Image:
    """As `load_image`, but with settings alone, which takes a fraction of the time."""
    folder = data_folder / f"{CLUSTER_METADATA_TOPIC}-0"
    return _Loader(folder, _SETTINGS).load().image if folder.is_dir() else EMPTY_IMAGE


def parse_snapshot_name(name: str) -> SnapshotName | None:
    match = _SNAPSHOT.fullmatch(name)
    return None if match is None else SnapshotName(int(match[1]), int(match[2]))


def snapshot_files(folder: Path) -> dict[SnapshotName, Path]:
    return {name: path for path in folder.iterdir() if (name := parse_snapshot_name(path.name)) is not None}


def segment_files(folder: Path) -> list[Path]:
    """The segment files in the order of their offsets."""
    return sorted(folder.glob(f"*{LOG_SUFFIX}"))


def records_of(path: Path, start_offset: int = 0) -> Iterator[MetadataRecord]:
    """The records of a snapshot or segment. Raises KafkaError or MalformedRequest where it is damaged."""
    for batch in read_batches(path.read_bytes(), start_offset):
        yield from batch.records


class _Loader:
    def __init__(self, folder: Path, types: Collection[int] | None = None) -> None:
        self._folder = folder
        self._types = types
        self._replay = Replay()
        self._is_complete = True
        self._is_torn = False
        self._end_offset = 0

    def load(self) -> LoadedImage:
        try:
            self._read()
        except (KafkaError, MalformedRequest, InvalidMetadata) as error:
            log.warning("what Kafka's controllers wrote in %s is not read to its end: %s", self._folder, error)
            self._is_complete = False
        is_complete = self._is_complete and self._end_offset > 0  # there is always a level of metadata.version
        return LoadedImage(self._replay.image(), is_complete, self._end_offset, self._is_torn)

    def _read(self) -> None:
        snapshots, segments = snapshot_files(self._folder), segment_files(self._folder)
        newest = max(snapshots, default=SnapshotName(0, 0))
        if newest in snapshots:
            self._replay = Replay(decode_checkpoint(snapshots[newest].read_bytes(), self._known, self._types).image)
            self._end_offset = newest.end_offset
        for path in segments[:-1]:
            self._read_segment(path, newest.end_offset)
        try:
            for path in segments[-1:]:
                self._read_segment(path, newest.end_offset)
        except CorruptBatchError as error:
            if damage_before_the_end(segments[-1:]) is not None:
                raise
            # A torn end is what a kill leaves, and nobody was told that it is there.
            self._is_torn = True
            log.info("%s does not end with a whole batch: %s", segments[-1], error)

    def _read_segment(self, path: Path, start_offset: int) -> None:
        for batch in read_batches(path.read_bytes(), start_offset, self._types):
            for message in map(self._known, batch.records):
                if message is not None:
                    self._replay.apply(message)
            self._end_offset = batch.header.next_offset

    def _known(self, record: MetadataRecord) -> Message | None:
        """Records of a newer Kafka may have said anything; those that are known are read all the same."""
        try:
            return record.known()
        except KafkaError as error:
            log.warning("%s: %s", self._folder, error.message)
            self._is_complete = False
            return None
