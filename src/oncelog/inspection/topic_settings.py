"""Settings of topics, as a data folder has them: from Oncelog's metadata journal, or from `__cluster_metadata`."""

from __future__ import annotations

import contextlib
from itertools import chain
from pathlib import Path
from typing import Final

from oncelog.cluster.kraft_metadata import records_of, segment_files, snapshot_files
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC
from oncelog.inspection import entries
from oncelog.protocol.messages.cluster_metadata import ConfigRecord
from oncelog.protocol.primitives import MalformedRequest

CLEANUP_POLICY: Final = "cleanup.policy"


def compacted_topics(data_folder: Path) -> set[str]:
    """Topics that are or were compacted: their logs have gaps in either case."""
    return _from_journal(data_folder / JOURNAL_FILE) | _from_cluster_metadata(data_folder)


def _from_journal(path: Path) -> set[str]:
    found: set[str] = set()
    if not path.exists():
        return found
    # Nothing after the damage can be read. Verification reports the damaged file.
    with contextlib.suppress(entries.Unreadable):
        for entry in entries.read_journal(path):
            is_topic = entry.get("kind") in ("topic", "topic_config")
            if is_topic and _is_compact(entry.get("configs", {}).get(CLEANUP_POLICY)):
                found.add(str(entry.get("name")))
    return found


def _from_cluster_metadata(data_folder: Path) -> set[str]:
    found: set[str] = set()
    folder = data_folder / f"{CLUSTER_METADATA_TOPIC}-0"
    if not folder.is_dir():
        return found
    for path in chain(snapshot_files(folder).values(), segment_files(folder)):
        # Damaged, or removed meanwhile by a controller that runs.
        with contextlib.suppress(KafkaError, MalformedRequest, FileNotFoundError):
            for record in records_of(path):
                if isinstance(record.message, ConfigRecord) and _compacts_topic(record.message):
                    found.add(record.message.resource_name)
    return found


def _compacts_topic(record: ConfigRecord) -> bool:
    key = record.resource_type, record.name
    return key == (ResourceType.TOPIC, CLEANUP_POLICY) and _is_compact(record.value)


def _is_compact(policy: str | None) -> bool:
    return policy is not None and "compact" in policy
