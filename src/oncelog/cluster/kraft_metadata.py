"""Settings of topics as Kafka's controllers left them in `__cluster_metadata`.

The newest snapshot counts, and the log behind it. A snapshot is named after the offset behind what it contains and its
epoch, and holds record batches as a log does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from oncelog.core.errors import KafkaError
from oncelog.protocol.batch import CorruptBatchError, crc_of, decode_records, iter_headers
from oncelog.protocol.messages.cluster_metadata import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_metadata_record,
)
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.storage.log_dir import CLUSTER_METADATA_TOPIC
from oncelog.storage.segment import LOG_SUFFIX

log = logging.getLogger("oncelog.server")

_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
TOPIC_RESOURCE: Final = 2
"""The type of resource that a topic is."""


class SnapshotName(NamedTuple):
    end_offset: int
    epoch: int


class KraftSettings(NamedTuple):
    """What was set for topics, by their names. If it is not complete, others may have had settings as well."""

    topics: dict[str, dict[str, str]]
    is_complete: bool


def kraft_settings(data_folder: Path) -> KraftSettings:
    folder = data_folder / f"{CLUSTER_METADATA_TOPIC}-0"
    configs: dict[str, dict[str, str]] = {}
    names: dict[UUID, str] = {}
    if not folder.is_dir():
        return KraftSettings(configs, is_complete=False)
    try:
        for message in _messages(folder):
            match message:
                case TopicRecord(name=name, topic_id=topic_id):
                    names[topic_id] = name
                case RemoveTopicRecord(topic_id=topic_id):
                    configs.pop(names.pop(topic_id, ""), None)
                case ConfigRecord(resource_type=kind) if kind != TOPIC_RESOURCE:
                    continue
                case ConfigRecord(resource_name=topic, name=name, value=None):
                    configs.get(topic, {}).pop(name, None)
                case ConfigRecord(resource_name=topic, name=name, value=str(value)):
                    configs.setdefault(topic, {})[name] = value
    except (KafkaError, MalformedRequest, IndexError) as error:
        log.warning("what Kafka's controllers wrote in %s is not read to its end: %s", folder, error)
        return KraftSettings(configs, is_complete=False)
    return KraftSettings(configs, is_complete=True)


def parse_snapshot_name(name: str) -> SnapshotName | None:
    match = _SNAPSHOT.fullmatch(name)
    return None if match is None else SnapshotName(int(match[1]), int(match[2]))


def _messages(folder: Path) -> Iterator[Message]:
    snapshots, logs = metadata_files(folder)
    newest = parse_snapshot_name(snapshots[-1].name) if snapshots else None
    start = newest.end_offset if newest is not None else 0
    for path in snapshots[-1:]:
        yield from messages_of(path)
    for path in logs[:-1]:
        yield from messages_of(path, start)
    try:
        for path in logs[-1:]:
            yield from messages_of(path, start)
    except CorruptBatchError as error:
        # A torn end is what a kill leaves, and nobody was told that it is there.
        log.info("%s ends with what is no batch: %s", logs[-1], error)


def metadata_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Snapshots and segments, by offset."""
    snapshots = sorted(path for path in folder.iterdir() if parse_snapshot_name(path.name) is not None)
    return snapshots, sorted(folder.glob(f"*{LOG_SUFFIX}"))


def messages_of(path: Path, start: int = 0) -> Iterator[Message]:
    """Of batches from offset `start` on. Raises KafkaError, MalformedRequest or IndexError where it is damaged."""
    data = path.read_bytes()
    for position, header in iter_headers(data):
        if crc_of(data, position, header.size_bytes) != header.crc:
            raise CorruptBatchError(f"{path}: the CRC of the batch at byte {position} does not match")
        if header.is_control or header.last_offset < start:
            continue
        for record in decode_records(data, position):
            message = decode_metadata_record(record.value or b"").message
            if message is not None:
                yield message
