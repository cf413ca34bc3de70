"""Taking over a data folder that another broker wrote: Apache Kafka's, or ours without its journal.

The folders tell a topic's name, id and partitions; its settings are not in them, so an adopted topic starts with the
broker's defaults (internal topics with theirs). Producer ids go on far above any that a log knows: how many more were
handed out is written elsewhere, in Kafka's own metadata log or in the journal that is missing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from oncelog.cluster.metadata import MetadataStore
from oncelog.core.ids import TopicPartition
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir

log = logging.getLogger("oncelog.server")

_PRODUCER_IDS_APART: Final = 1 << 40
"""More than are handed out in practice. A folder that is taken over begins with the next multiple."""

_Found = Mapping[str, Mapping[int, Log]]


def adopt_folders(log_dir: LogDir, metadata: MetadataStore) -> None:
    """Only at a first start: with a journal, a folder that it does not know is a stray of a deleted topic."""
    found: dict[str, dict[int, Log]] = defaultdict(dict)
    for (topic, index), partition_log in log_dir.logs.items():
        if topic not in metadata.topics:
            found[topic][index] = partition_log
    if metadata.is_new:
        _adopt(found, metadata)
        metadata.finish_adoption()
    else:
        _set_aside(found, log_dir)


def _set_aside(found: _Found, log_dir: LogDir) -> None:
    for topic, logs in found.items():
        for index in logs:
            # It may be left of a deletion, or be all that is left after damage to the journal: not ours to say.
            target = log_dir.set_aside(TopicPartition(topic, index))
            log.warning(
                "%s-%d belongs to no topic and is set aside; remove %s if it is not missed", topic, index, target
            )


def _adopt(found: _Found, metadata: MetadataStore) -> None:
    for topic, logs in found.items():
        topic_id = logs[min(logs)].topic_id
        if topic_id is None:
            log.warning("the folders of %s have no partition.metadata and are left alone", topic)
            continue
        epoch = max(partition_log.leader_epochs.latest_epoch for partition_log in logs.values())
        metadata.adopt_topic(topic, max(logs) + 1, topic_id, epoch)
        log.info("topic %s is adopted with %d partition(s)", topic, max(logs) + 1)
    if found:
        metadata.skip_producer_ids_to((_highest_producer_id(found) // _PRODUCER_IDS_APART + 1) * _PRODUCER_IDS_APART)


def _highest_producer_id(found: _Found) -> int:
    logs = [partition_log for logs in found.values() for partition_log in logs.values()]
    return max(
        (producer.producer_id for each in logs for producer in each.producer_state.active_producers()), default=0
    )
