"""Settings of topics, as far as a data folder tells: from Oncelog's metadata journal, or from `__cluster_metadata`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.core.errors import KafkaError
from oncelog.inspection import entries
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import JOURNAL_FILE, PartitionFolder
from oncelog.inspection.metadata_records import metadata_record
from oncelog.protocol.primitives import MalformedRequest
from oncelog.storage.log_dir import CLUSTER_METADATA_TOPIC

CLEANUP_POLICY: Final = "cleanup.policy"
_TOPIC_RESOURCE: Final = 2


def compacted_topics(data_folder: Path) -> set[str]:
    """Topics that are or were compacted: what the cleaner took out stays out."""
    return _from_journal(data_folder / JOURNAL_FILE) | _from_cluster_metadata(data_folder)


def _from_journal(path: Path) -> set[str]:
    found: set[str] = set()
    if not path.exists():
        return found
    try:
        for entry in entries.read_journal(path):
            if entry.get("kind") in ("topic", "topic_config") and _is_compact(
                entry.get("configs", {}).get(CLEANUP_POLICY)
            ):
                found.add(str(entry.get("name")))
    except entries.Unreadable:
        # The rest cannot be known; that the file is damaged is told by whoever verifies it.
        return found
    return found


def _from_cluster_metadata(data_folder: Path) -> set[str]:
    found: set[str] = set()
    for path in sorted(data_folder.glob(f"{CLUSTER_METADATA_TOPIC}-*")):
        for _, batch in walk(PartitionFolder(path)):
            if batch.header.is_control:
                continue
            try:
                records = [metadata_record(record.value or b"") for record in batch.records()]
            except (KafkaError, MalformedRequest, IndexError):
                continue
            for record in records:
                data = record["data"]
                is_policy = record["type"] == "CONFIG_RECORD" and data.get("name") == CLEANUP_POLICY
                if is_policy and data.get("resourceType") == _TOPIC_RESOURCE and _is_compact(data.get("value")):
                    found.add(data["resourceName"])
    return found


def _is_compact(policy: str | None) -> bool:
    return policy is not None and "compact" in policy
