"""Taking over a data folder that another broker wrote: Apache Kafka's, or ours without its metadata or the end of it.

The folders give a topic's name, id and partitions; its settings are in Kafka's metadata log, which lies beside them. So
are topics of this broker alone to which nothing was written yet. Where that log is missing or damaged, nothing of a
topic is deleted by age or size until its retention is set: it may have been a compacted one, or one that is kept for
ever. Internal topics have settings of their own. Producer ids go on far above any that a log knows, a transactional id
has or the metadata tells of: more may have been handed out.

An internal topic of which folders are missing has at least as many partitions as a new one would get: folders are made
when they are first written to, and those of a cluster lie on many brokers, but the hash that leads to them is one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final
from uuid import UUID

from oncelog.cluster.image_security import known_acls, scram_users
from oncelog.cluster.internal_topics import as_for_controllers, internal_partition_count, internal_topic_configs
from oncelog.cluster.kraft_metadata import LoadedImage, load_image
from oncelog.cluster.log_survey import LogSurvey
from oncelog.cluster.metadata import broker_configs
from oncelog.cluster.metadata_draft import MetadataDraft, config_records, found_partition, found_topic
from oncelog.controller.image import Image, ScramCredentialKey, TopicImage
from oncelog.controller.image_records import quota_records
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import known_settings
from oncelog.protocol.batch import decode_records
from oncelog.protocol.compiler import decode_versioned
from oncelog.protocol.messages.cluster_metadata import ProducerIdsRecord, RemoveTopicRecord
from oncelog.protocol.schema import Message
from oncelog.storage.intact_batches import intact_batches
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir
from oncelog.storage.partition_metadata import CorruptPartitionMetadataError

log = logging.getLogger("oncelog.server")

DAMAGED_BITS_MAX: Final = 8
"""Of a topic's id. Those of two topics are random, and differ in half of their bits."""
_KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}

_Found = Mapping[str, Mapping[int, Log]]


def complete_internal_topics(draft: MetadataDraft, settings: Settings) -> None:
    """Give internal topics without settings, as an earlier version adopted them, their settings: retention would delete
    their records."""
    for name in INTERNAL_TOPICS & draft.image.topic_ids.keys():
        configs = draft.image.topic_settings(name)
        if "cleanup.policy" not in configs:
            log.warning("topic %s had no cleanup policy and gets the settings of an internal topic", name)
            completed = {**as_for_controllers(internal_topic_configs(name, settings)), **configs}
            draft.apply(config_records(ResourceType.TOPIC, name, completed))


def adopt_folders(log_dir: LogDir, draft: MetadataDraft, settings: Settings, survey: LogSurvey | None) -> None:
    """Adopt folders that the metadata does not know at a first start, or if it has lost its end. Else set them aside.

    The logs were opened before their settings were known, and still have the defaults. `survey` is None when there is
    no reason to doubt the metadata.
    """
    if survey is not None and not draft.is_new and not draft.is_cut:
        _doubt(draft, survey)
    found = _unknown_logs(log_dir, draft)
    if draft.is_new or draft.is_cut:
        left = _left_by_controllers(log_dir.path) if draft.is_new else None
        _adopt(found, draft, settings, left)
        if left is not None:
            _adopt_others(draft, left.image)
        _adopt_partitions(log_dir, draft)
    else:
        # They may be left of a deletion, or be all that is left after damage to the metadata: not ours to say.
        for partition in [TopicPartition(name, index) for name, logs in found.items() for index in logs]:
            log_dir.set_aside(partition)
    if survey is not None:
        _go_above(log_dir, draft, survey)
    if draft.is_new or draft.is_cut:
        draft.finish_adoption()


def _left_by_controllers(data_folder: Path) -> LoadedImage | None:
    """None if no controllers wrote to this folder."""
    return load_image(data_folder) if (data_folder / f"{CLUSTER_METADATA_TOPIC}-0").is_dir() else None


def _doubt(draft: MetadataDraft, survey: LogSurvey) -> None:
    """This start's epochs are above those of all starts before it, as far as the metadata knows of them.

    A topic that it does not know is no reason for doubt, since it may be left of a deletion. But if the metadata knows
    nothing of the producers of a log either, it has forgotten both.
    """
    for name, epoch in survey.leader_epochs.items():
        topic = draft.image.topic(name)
        if topic is not None and epoch >= draft.epoch_of(topic):
            draft.mark_cut(f"the log of {name} has leader epoch {epoch}, which it has not come to")
            return
        if topic is None and not draft.has_given_out(survey.producer_id):
            draft.mark_cut(f"it knows neither topic {name} nor producer id {survey.producer_id}, which is in the logs")
            return


def _unknown_logs(log_dir: LogDir, draft: MetadataDraft) -> _Found:
    """The logs of topics that the metadata does not know. Without its end it may know an older topic by that name."""
    found: dict[str, dict[int, Log]] = defaultdict(dict)
    for (name, index), partition_log in log_dir.logs.items():
        topic = draft.image.topic(name)
        if topic is None or (draft.is_cut and not is_of_topic(partition_log, topic.topic_id)):
            found[name][index] = partition_log
    return found


def known_topic_id(partition_log: Log) -> UUID | None:
    """None if nobody can tell, as after a power cut: it is taken for the topic of that name, if there is one."""
    try:
        return partition_log.topic_id
    except CorruptPartitionMetadataError as error:
        log.warning("%s is assumed to belong to the topic in the metadata: %s", partition_log.topic_partition, error)
        return None


def is_of_topic(partition_log: Log, topic_id: UUID) -> bool:
    """Also if nobody can tell, or if a byte of the id in `partition.metadata`, which has no checksum, has changed: a
    log is not given up for that."""
    found = known_topic_id(partition_log)
    if found is None or found == topic_id:
        return True
    if (found.int ^ topic_id.int).bit_count() > DAMAGED_BITS_MAX:
        return False
    log.warning(
        "%s belongs to topic %s, although its partition.metadata says %s: a few bits of that have changed",
        partition_log.topic_partition, topic_id, found,
    )  # fmt: skip
    return True


def _adopt_partitions(log_dir: LogDir, draft: MetadataDraft) -> None:
    counts: dict[str, int] = defaultdict(int)
    for name, index in log_dir.logs:
        counts[name] = max(counts[name], index + 1)
    records: list[Message] = []
    for name, count in counts.items():
        topic = draft.image.topic(name)
        if topic is None:
            continue
        for index in range(len(topic.partitions), count):
            log.warning("topic %s has a partition %d, which the metadata did not know", name, index)
            records.append(found_partition(topic.topic_id, index, -1))
    if records:
        draft.apply(records)


def _go_above(log_dir: LogDir, draft: MetadataDraft, survey: LogSurvey) -> None:
    """Make sure that no number is given out that a log has seen. With intact metadata this changes nothing."""
    highest_id = survey.producer_id
    if draft.is_new or draft.is_cut:
        logs = [each for (topic, _), each in log_dir.logs.items() if topic == TRANSACTION_STATE_TOPIC]
        highest_id = max(chain([highest_id], _producer_ids_of_transactions(logs)))
    if log_dir.logs:
        draft.skip_producer_ids_above(highest_id)
    epochs = dict(survey.leader_epochs)
    if TRANSACTION_STATE_TOPIC in draft.image.topic_ids:
        epochs[TRANSACTION_STATE_TOPIC] = max(epochs.get(TRANSACTION_STATE_TOPIC, -1), survey.coordinator_epoch)
    draft.go_above(epochs)


def _adopt(found: _Found, draft: MetadataDraft, settings: Settings, left: LoadedImage | None) -> None:
    own = {} if left is None else _kept_here_alone(left.image, settings.integer("node.id"))
    records: list[Message] = []
    for name, logs in found.items():
        topic_id = known_topic_id(logs[min(logs)])
        if topic_id is None:
            log.warning("the folders of %s have no partition.metadata and are left alone", name)
            continue
        epoch = max(partition_log.leader_epochs.latest_epoch for partition_log in logs.values())
        # A log knows only the epochs in which something was appended. Clients take no leader of an older one.
        epoch = max([epoch, *_epochs(topic_id, left)])
        count = max(logs) + 1
        if name in INTERNAL_TOPICS and len(logs) < count:
            count = max(count, internal_partition_count(name, settings))
        same = own.get(name)
        if same is not None and same.topic_id == topic_id:
            count = max(count, len(same.partitions))
        if (known := draft.image.topic(name)) is not None:
            records.append(RemoveTopicRecord(topic_id=known.topic_id))
        records += found_topic(name, topic_id, count, epoch, _all_configs(name, settings, left))
        log.info("topic %s is adopted with %d partition(s)", name, count)
    for name in own.keys() - found.keys():
        # Folders are made when they are first written to.
        topic_id, count = own[name].topic_id, len(own[name].partitions)
        epoch = max(_epochs(topic_id, left), default=-1)
        records += found_topic(name, topic_id, count, epoch, _all_configs(name, settings, left))
        log.info("topic %s is adopted from the metadata, with %d partition(s) and no records", name, count)
    if records:
        draft.apply(records)


def _kept_here_alone(image: Image, node_id: int) -> dict[str, TopicImage]:
    """Topics of which no other broker has a replica, as on a node that was alone."""
    return {
        topic.name: topic
        for topic in image.topics.values()
        if all(partition.replicas == (node_id,) for partition in topic.partitions.values())
    }


def _adopt_others(draft: MetadataDraft, image: Image) -> None:
    """What is not about topics."""
    settings = [
        record
        for broker, configs in broker_configs(image).items()
        for record in config_records(ResourceType.BROKER, broker, _dynamic(configs))
    ]
    users = [image.scram[ScramCredentialKey(*user)] for user in scram_users(image)]
    acls = [image.acls[acl_id] for acl_id in known_acls(image)]
    quotas = list(quota_records(image))
    for records, name in (
        (settings, "setting of brokers"),
        (users, "SCRAM credential"),
        (acls, "ACL"),
        (quotas, "quota"),
    ):
        if records:
            draft.apply(records)
            log.info("taken over: %d x %s", len(records), name)
    if image.next_producer_id >= 0:
        draft.apply([ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)])


def _dynamic(configs: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in configs.items() if BROKER_CONFIG.key(name).dynamic}


def _epochs(topic_id: UUID, left: LoadedImage | None) -> Iterator[int]:
    """The leader epochs of the topic in the metadata that controllers left."""
    found = None if left is None else left.image.topics.get(topic_id)
    return (partition.leader_epoch for partition in (found.partitions.values() if found is not None else ()))


def _all_configs(topic: str, settings: Settings, left: LoadedImage | None) -> dict[str, str]:
    return as_for_controllers(internal_topic_configs(topic, settings)) | _configs(topic, left)


def _configs(topic: str, left: LoadedImage | None) -> dict[str, str]:
    """What was set for a topic, as far as it is known and has a meaning here."""
    settings = {} if left is None else left.image.topic_settings(topic)
    is_complete = left is not None and left.is_complete
    if not settings and not is_complete and topic not in INTERNAL_TOPICS:
        log.warning("the settings of topic %s are not known: it is kept whole until its retention is set", topic)
        return dict(_KEPT)
    return known_settings(TOPIC_CONFIG, settings, f"topic {topic}")


def _producer_ids_of_transactions(logs: Iterable[Log]) -> Iterator[int]:
    """The producer ids of transactional ids. Some may not have written to any partition yet."""
    from oncelog.protocol.messages.transaction_log import TransactionLogValue

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
                    log.warning(
                        "%s: the batch at offset %d cannot be decoded: %s",
                        partition_log,
                        batch.header.base_offset,
                        error,
                    )
