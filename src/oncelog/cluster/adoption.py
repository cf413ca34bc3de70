"""Taking over a data folder that another broker wrote: Apache Kafka's, or ours without its journal.

The folders tell a topic's name, id and partitions; its settings are not in them, so an adopted topic starts with the
broker's defaults (internal topics with theirs). Producer ids go on far above anything Kafka hands out in practice,
because the block Kafka had reached is written in its own metadata log only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Final

from oncelog.cluster.metadata import MetadataStore
from oncelog.core.ids import TopicPartition
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir

log = logging.getLogger("oncelog.server")

ADOPTED_PRODUCER_IDS_FROM: Final = 1 << 40


def adopt_folders(log_dir: LogDir, metadata: MetadataStore) -> None:
    """Only into an empty journal: with one, a folder that it does not know is a stray of a deleted topic."""
    found: dict[str, dict[int, Log]] = defaultdict(dict)
    for (topic, index), partition_log in log_dir.logs.items():
        if topic not in metadata.topics:
            found[topic][index] = partition_log
    if not found:
        return
    if not metadata.is_new:
        for topic, logs in found.items():
            for index in logs:
                # It may be left of a deletion, or be all that is left after damage to the journal: not ours to say.
                target = log_dir.set_aside(TopicPartition(topic, index))
                log.warning(
                    "%s-%d belongs to no topic and is set aside; remove %s if it is not missed", topic, index, target
                )
        return
    for topic, logs in found.items():
        topic_id = logs[min(logs)].topic_id
        if topic_id is None:
            log.warning("the folders of %s have no partition.metadata and are left alone", topic)
            continue
        epoch = max(partition_log.leader_epochs.latest_epoch for partition_log in logs.values())
        metadata.adopt_topic(topic, max(logs) + 1, topic_id, epoch)
        log.info("topic %s is adopted with %d partition(s)", topic, max(logs) + 1)
    metadata.skip_producer_ids_to(ADOPTED_PRODUCER_IDS_FROM)
