"""Taking over a data folder that another broker wrote: Apache Kafka's, or ours without its journal or the end of it.

The folders give a topic's name, id and partitions; its settings are in Kafka's metadata log, which lies beside them.
Where that is missing or damaged, nothing of a topic is deleted by age or size until its retention is set: it may have
been a compacted one, or one that is kept for ever. Internal topics have settings of their own. Producer ids go on far
above any that a log knows, or a transactional id has: how many more were handed out is written elsewhere, in Kafka's
own metadata log or in the journal that is missing.

An internal topic of which folders are missing has at least as many partitions as a new one would get: folders are made
when they are first written to, and those of a cluster lie on many brokers, but the hash that leads to them is one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from oncelog.cluster.internal_topics import internal_partition_count, internal_topic_configs
from oncelog.cluster.log_survey import LogSurvey
from oncelog.cluster.metadata_draft import MetadataDraft
from oncelog.cluster.metadata_entries import (
    Topic,
    acls_entry,
    partitions_entry,
    quotas_entry,
    topic_config_entry,
    users_entry,
)
from oncelog.core.config import Settings
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import known_settings
from oncelog.protocol.batch import decode_records
from oncelog.protocol.compiler import decode_versioned
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from oncelog.storage.intact_batches import intact_batches
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir
from oncelog.storage.partition_metadata import CorruptPartitionMetadataError

if TYPE_CHECKING:
    from oncelog.cluster.kraft_metadata import LoadedImage
    from oncelog.controller.image import Image

log = logging.getLogger("oncelog.server")

_KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}

_Found = Mapping[str, Mapping[int, Log]]


def complete_internal_topics(metadata: MetadataDraft, settings: Settings) -> None:
    """Give internal topics without settings, as an earlier version adopted them, their settings: retention would delete
    their records."""
    for name in INTERNAL_TOPICS & metadata.topics.keys():
        configs = metadata.topics[name].configs
        if "cleanup.policy" not in configs:
            log.warning("topic %s had no cleanup policy and gets the settings of an internal topic", name)
            metadata.commit(topic_config_entry(name, internal_topic_configs(name, settings) | configs))


def adopt_folders(
    log_dir: LogDir, metadata: MetadataDraft, settings: Settings, survey: LogSurvey | None
) -> list[Topic]:
    """Adopt folders that the journal does not know at a first start, or if it has lost its end. Else set them aside.

    Returns what was adopted. The logs were opened before their settings were known, and still have the defaults.
    `survey` is None when there is no reason to doubt the journal.
    """
    if survey is not None and not metadata.is_new and not metadata.is_cut:
        _doubt_journal(metadata, survey)
    found = _unknown_logs(log_dir, metadata)
    if metadata.is_new or metadata.is_cut:
        left = _left_by_controllers(log_dir.path) if metadata.is_new else None
        _adopt(found, metadata, settings, left)
        if left is not None:
            _adopt_security(metadata, left.image)
        _adopt_partitions(log_dir, metadata)
    else:
        _set_aside(found, log_dir)
    if survey is not None:
        _go_above(log_dir, metadata, survey)
    if metadata.is_new or metadata.is_cut:
        metadata.finish_adoption()
    return [metadata.topics[topic] for topic in found.keys() & metadata.topics.keys()]


def _left_by_controllers(data_folder: Path) -> LoadedImage | None:
    """None if no controllers wrote to this folder: then nothing of what reads their metadata is imported."""
    if not (data_folder / f"{CLUSTER_METADATA_TOPIC}-0").is_dir():
        return None
    from oncelog.cluster.kraft_metadata import load_image

    return load_image(data_folder)


def _doubt_journal(metadata: MetadataDraft, survey: LogSurvey) -> None:
    """This start's epochs are above those of all starts before it, as far as the journal knows of them.

    A topic that it does not know is no reason for doubt, since it may be left of a deletion. But if the journal knows
    nothing of the producers of a log either, it has forgotten both.
    """
    for name, epoch in survey.leader_epochs.items():
        topic = metadata.topics.get(name)
        if topic is not None and epoch >= metadata.partition_state(topic, 0).leader_epoch:
            metadata.mark_cut(f"the log of {name} has leader epoch {epoch}, which it has not come to")
            return
        if topic is None and not metadata.has_given_out(survey.producer_id):
            metadata.mark_cut(
                f"it knows neither topic {name} nor producer id {survey.producer_id}, which is in the logs"
            )
            return


def _unknown_logs(log_dir: LogDir, metadata: MetadataDraft) -> _Found:
    """The logs of topics that the journal does not know. Without its end it may know an older topic by that name."""
    found: dict[str, dict[int, Log]] = defaultdict(dict)
    for (name, index), partition_log in log_dir.logs.items():
        topic = metadata.topics.get(name)
        if topic is None or (metadata.is_cut and _is_of_another(partition_log, topic)):
            found[name][index] = partition_log
    return found


def known_topic_id(partition_log: Log) -> UUID | None:
    """None if nobody can tell, as after a power cut: it is taken for the topic of that name, if there is one."""
    try:
        return partition_log.topic_id
    except CorruptPartitionMetadataError as error:
        log.warning("%s is assumed to belong to the topic in the metadata: %s", partition_log.topic_partition, error)
        return None


def _is_of_another(partition_log: Log, topic: Topic) -> bool:
    return known_topic_id(partition_log) not in (None, topic.topic_id)


def _adopt_partitions(log_dir: LogDir, metadata: MetadataDraft) -> None:
    for name, index in log_dir.logs:
        topic = metadata.topics.get(name)
        if topic is not None and index >= topic.partition_count:
            log.warning("topic %s has a partition %d, which the journal did not know", name, index)
            metadata.commit(partitions_entry(name, index + 1))


def _go_above(log_dir: LogDir, metadata: MetadataDraft, survey: LogSurvey) -> None:
    """Make sure that no number is given out that a log has seen. With an intact journal this changes nothing."""
    highest_id = survey.producer_id
    if metadata.is_new or metadata.is_cut:
        logs = [each for (topic, _), each in log_dir.logs.items() if topic == TRANSACTION_STATE_TOPIC]
        highest_id = max(chain([highest_id], _producer_ids_of_transactions(logs)))
    if log_dir.logs:
        metadata.skip_producer_ids_above(highest_id)
    for topic in metadata.topics.values():
        epoch = survey.leader_epochs[topic.name]
        if topic.name == TRANSACTION_STATE_TOPIC:
            epoch = max(epoch, survey.coordinator_epoch)
        metadata.raise_incarnation(topic.born + epoch + 1)


def _set_aside(found: _Found, log_dir: LogDir) -> None:
    for topic, logs in found.items():
        for index in logs:
            # It may be left of a deletion, or be all that is left after damage to the journal: not ours to say.
            target = log_dir.set_aside(TopicPartition(topic, index))
            log.warning(
                "%s-%d belongs to no topic and is set aside; remove %s if it is not missed", topic, index, target
            )


def _adopt(found: _Found, metadata: MetadataDraft, settings: Settings, left: LoadedImage | None) -> None:
    for topic, logs in found.items():
        topic_id = known_topic_id(logs[min(logs)])
        if topic_id is None:
            log.warning("the folders of %s have no partition.metadata and are left alone", topic)
            continue
        epoch = max(partition_log.leader_epochs.latest_epoch for partition_log in logs.values())
        # A log knows only the epochs in which something was appended. Clients take no leader of an older one.
        epoch = max([epoch, *_epochs(topic_id, left)])
        count = max(logs) + 1
        if topic in INTERNAL_TOPICS and len(logs) < count:
            count = max(count, internal_partition_count(topic, settings))
        configs = internal_topic_configs(topic, settings) | _configs(topic, left)
        metadata.adopt_topic(topic, count, topic_id, epoch, configs)
        log.info("topic %s is adopted with %d partition(s)", topic, count)


def _adopt_security(metadata: MetadataDraft, image: Image) -> None:
    from oncelog.cluster.image_security import acls_of, scram_users

    users, acls = scram_users(image), acls_of(image)
    if users:
        metadata.commit(users_entry(users))
        log.info("%d SCRAM credential(s) are taken over", len(users))
    if acls:
        metadata.commit(acls_entry(acls))
        log.info("%d ACL(s) are taken over", len(acls))
    quotas = [(entity, key, rate) for entity, rates in image.quotas.items() for key, rate in rates.items()]
    if quotas:
        metadata.commit(quotas_entry(quotas))
        log.info("%d quota(s) are taken over", len(quotas))


def _epochs(topic_id: UUID, left: LoadedImage | None) -> Iterator[int]:
    """That controllers have told of."""
    found = None if left is None else left.image.topics.get(topic_id)
    return (partition.leader_epoch for partition in (found.partitions.values() if found is not None else ()))


def _configs(topic: str, left: LoadedImage | None) -> dict[str, str]:
    """What was set for a topic, as far as it is known and has a meaning here."""
    settings = {} if left is None else left.image.topic_settings(topic)
    is_complete = left is not None and left.is_complete
    if not settings and not is_complete and topic not in INTERNAL_TOPICS:
        log.warning("the settings of topic %s are not known: it is kept whole until its retention is set", topic)
        return dict(_KEPT)
    return known_settings(TOPIC_CONFIG, settings, f"topic {topic}")


def _producer_ids_of_transactions(logs: Iterable[Log]) -> Iterator[int]:
    """A transactional id keeps its producer id when it writes nothing, and is given the next one before it does."""
    for partition_log in logs:
        for segment in partition_log.segments:
            for batch in intact_batches(segment, partition_log.log_end_offset):
                if batch.header.is_control:
                    continue
                try:
                    for record in decode_records(batch.data, batch.start):
                        if record.value is not None:
                            value = decode_versioned(TransactionLogValue, record.value)
                            yield from (value.producer_id, value.previous_producer_id, value.next_producer_id)
                except (KafkaError, ValueError) as error:
                    log.warning("%s offset %d is not understood: %s", partition_log, batch.header.base_offset, error)
