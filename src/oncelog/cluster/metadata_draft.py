"""The metadata of one node while it starts: as its controller left it, or as it is found in a folder of another kind.

A folder can have a journal of earlier versions (see `journal`), be one of Apache Kafka's, or have a metadata log that
lost its end. `adoption` then changes the draft, in memory, and `image` is what the controller of the node begins with.
If nothing has changed, the controller goes on with its own log.
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID

from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.internal_topics import as_for_controllers
from oncelog.cluster.journal import JournalDamaged, JournalEntry, read_journal
from oncelog.cluster.metadata import Metadata
from oncelog.cluster.metadata_entries import (
    Topic,
    acl_of,
    delete_entry,
    given_users,
    producer_ids_entry,
    quota_changes,
    removed_users,
    topic_entry,
    topic_of,
)
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.acl_changes import acl_record
from oncelog.controller.image import Image
from oncelog.controller.replay import Replay
from oncelog.controller.scram_changes import ScramChange, scram_record
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, LeaderEpoch, NodeId
from oncelog.core.invariant import invariant
from oncelog.protocol.messages.cluster_metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    TopicRecord,
)
from oncelog.protocol.schema import Message

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
PRODUCER_IDS_APART: Final = 1 << 40
"""More than are handed out in practice. Where the last one handed out is not known, the next multiple comes next."""

log = logging.getLogger("oncelog.server")


class MetadataDraft(Metadata):
    def __init__(self, folder: Path, node_id: NodeId) -> None:
        super().__init__()
        self._path = folder / JOURNAL_FILE
        self._node_id = node_id
        self._states: dict[LeaderEpoch, PartitionState] = {}
        """Of all partitions with this epoch."""
        self.has_changed = False
        self.is_new = False
        """Whether the folder has no metadata of Oncelog."""
        self.is_cut = False
        """Whether its metadata has lost its end, and `finish_adoption` has not made up for it yet."""
        self.incarnation = -1
        """The leader epoch of a partition is the number of starts since its topic was made."""
        self._stopped_incarnation: int | None = None
        self._boot_id: str | None = None
        self._doubtful_incarnation = -1
        self.next_producer_id = 0
        """The first of no block yet."""

    def open(
        self, *, stopped_incarnation: int | None = None, was_clean: bool = False, boot_id: str | None = None
    ) -> None:
        """Reads a journal of earlier versions, and counts this start. Raises JournalDamaged.

        `stopped_incarnation` is what the folder says was the last to be stopped in order, None if it does not. A
        journal shows that it has lost its end by a bad last line, or because it does not end with that stop, or by
        epochs in the logs that it has not come to (see `adoption`).
        """
        torn_bytes = self.load()
        if not self.is_new and torn_bytes:
            self.mark_cut(f"its last {torn_bytes} bytes are torn or damaged")
        elif not self.is_new and self._lacks_stop_of(stopped_incarnation):
            self.mark_cut(f"the stop of start {stopped_incarnation} is not in it")
        went_down = not self.is_new and not was_clean and (boot_id is None or boot_id != self._boot_id)
        incarnation = self.incarnation + 1
        self._boot_id = boot_id
        self._doubtful_incarnation = incarnation if went_down else self._doubtful_incarnation
        self.commit(self._start_entry(incarnation))

    def load(self) -> int:
        """What the journal says. Returns how many bytes at its end are torn."""
        found = read_journal(self._path)
        for entry in found.entries:
            self._apply(entry)
        self.is_new = not found.entries
        return found.torn_bytes

    def commit(self, entry: JournalEntry) -> None:
        self._apply(entry)
        self.has_changed = True

    def finish_adoption(self) -> None:
        self.is_new = self.is_cut = False
        self.has_changed = True

    @property
    def has_settings(self) -> bool:
        """Whether there is anything beside topics."""
        security = self.users or self.acls or self.quotas
        return bool(security or self.broker_configs or self.next_producer_id)

    @property
    def doubtful_epoch(self) -> int:
        """See `NodeFacts`. All partitions of the topic have the same epoch."""
        topic = self.topics.get(TRANSACTION_STATE_TOPIC)
        return 0 if topic is None else max(0, self.doubtful_below_epoch(topic))

    def begin(self, image: Image | None, known: NodeFacts, *, went_down: bool = False) -> None:
        """With the image of the node's own controller, or with nothing. Epochs of this start are above those in it.

        `went_down`: the machine went down under the broker.
        """
        self.is_new = image is None
        self.incarnation = 0
        self.secret = known.secret
        if image is None:
            return
        self._take(image)
        topic = self.topics.get(TRANSACTION_STATE_TOPIC)
        if went_down:
            self._doubtful_incarnation = self.incarnation
        elif topic is not None and known.doubtful_epoch:
            self._doubtful_incarnation = topic.born + known.doubtful_epoch

    def _take(self, image: Image) -> None:
        epochs = {
            topic_id: 1 + max((partition.leader_epoch for partition in found.partitions.values()), default=-1)
            for topic_id, found in image.topics.items()
        }
        self.incarnation = max(epochs.values(), default=0)
        for found in image.topics.values():
            configs = dict(image.topic_settings(found.name))
            born = self.incarnation - epochs[found.topic_id]
            topic = Topic(found.name, found.topic_id, len(found.partitions), configs, born)
            self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
            self.partitions_in_all += topic.partition_count
        self.broker_configs = {
            resource.name: dict(configs)
            for resource, configs in image.settings.items()
            if resource.type == ResourceType.BROKER
        }
        self.users, self.acls = scram_users(image), dict.fromkeys(acls_of(image))
        self.quotas = {entity: dict(rates) for entity, rates in image.quotas.items()}
        self.next_producer_id = max(0, image.next_producer_id)

    def doubtful_below_epoch(self, topic: Topic) -> int:
        return self._doubtful_incarnation - topic.born if self._doubtful_incarnation >= 0 else 0

    def _lacks_stop_of(self, incarnation: int | None) -> bool:
        return incarnation is not None and self.incarnation <= incarnation != self._stopped_incarnation

    def _start_entry(self, incarnation: int) -> JournalEntry:
        return {
            "kind": "start",
            "incarnation": incarnation,
            "boot": self._boot_id,
            "doubtful": self._doubtful_incarnation,
        }

    def mark_cut(self, reason: str) -> None:
        """Changes are kept in memory from here on until `finish_adoption` writes them all."""
        log.warning(
            "the metadata has lost its end: %s. Producer ids and epochs go on above all that the logs know; "
            "topics and partitions that it does not know are taken over, without their settings. Other settings, users "
            "and ACLs may be those of before a change: check retention, and who may do what", reason,
        )  # fmt: skip
        self.is_cut = True

    def partition_state(self, topic: Topic, index: int) -> PartitionState:
        """All partitions of one node are led by it, and have no other replica."""
        epoch = LeaderEpoch(self.incarnation - topic.born)
        state = self._states.get(epoch)
        if state is None:
            alone = (self._node_id,)
            state = self._states[epoch] = PartitionState(self._node_id, epoch, replicas=alone, in_sync=alone)
        return state

    def adopt_topic(
        self,
        name: str,
        partition_count: int,
        topic_id: uuid.UUID,
        leader_epoch: int,
        configs: Mapping[str, str] = NO_CONFIGS,
    ) -> Topic:
        """A topic found on disk: its epochs go on from the last one its log has seen, -1 for none."""
        born = self.incarnation - leader_epoch - 1
        invariant(self.is_new or self.is_cut, "what is in a folder is taken over by a first start only")
        if name in self.topics:
            self.commit(delete_entry(self.topics[name]))
        self.commit(topic_entry(Topic(name, topic_id, partition_count, dict(configs), born)))
        return self.topics[name]

    def skip_producer_ids_above(self, highest: int) -> None:
        """Give out no id up to `highest`, which is in use. Nothing changes if that is the case anyway.

        While it is not known which ones were given out, there may be others above it.
        """
        if not self.has_given_out(highest) or self.is_new or self.is_cut:
            self.commit(producer_ids_entry(self.producer_ids_apart_from(highest)))

    def producer_ids_apart_from(self, highest: int) -> int:
        """The next producer id to give out if `highest` was given out and others above it may have been."""
        return ids_apart_from(max(highest, self.next_producer_id - 1))

    def has_given_out(self, producer_id: int) -> bool:
        """Whether a producer id may have been given out: it is in a reserved block."""
        return producer_id < self.next_producer_id

    def raise_incarnation(self, incarnation: int) -> None:
        if incarnation > self.incarnation:
            if self._doubtful_incarnation == self.incarnation:
                self._doubtful_incarnation = incarnation
            self.commit(self._start_entry(incarnation))

    # Changes

    def _apply(self, entry: JournalEntry) -> None:
        self._stopped_incarnation = None
        match entry["kind"]:
            case "stop":
                self._stopped_incarnation = entry["incarnation"]
            case "start":
                self.incarnation = entry["incarnation"]
                self._boot_id = entry.get("boot")
                self._doubtful_incarnation = entry.get("doubtful", -1)
            case "topic":
                topic = topic_of(entry)
                self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
                self.partitions_in_all += topic.partition_count
            case "partitions":
                topic = self.topics[entry["name"]]
                self.partitions_in_all += entry["count"] - topic.partition_count
                topic.partition_count = entry["count"]
            case "topic_config":
                topic = self.topics[entry["name"]]
                topic.configs = dict(entry["configs"])
            case "delete":
                topic = self.topics.pop(entry["name"])
                del self.topics_by_id[topic.topic_id]
                self.partitions_in_all -= topic.partition_count
            case "broker_config":
                self.broker_configs[entry["node"]] = dict(entry["configs"])
            case "producer_ids":
                self.next_producer_id = entry["next"]
            case "users":
                for user in removed_users(entry):
                    self.users.pop(user, None)
                self.users |= given_users(entry)
            case "quotas":
                self._apply_quotas(entry)
            case "acls":
                for removed in map(acl_of, entry["removed"]):
                    self.acls.pop(removed, None)
                self.acls |= dict.fromkeys(map(acl_of, entry["added"]))
            case "secret":
                self.secret = base64.b64decode(entry["value"])
            case unknown:
                raise JournalDamaged(
                    f"{self._path} has an entry of kind {unknown!r}, which this version does not know: a newer "
                    "Oncelog has used the folder. Use that version, or restore the folder from a copy of before"
                )

    def _apply_quotas(self, entry: JournalEntry) -> None:
        for entity, key, rate in quota_changes(entry):
            rates = self.quotas.setdefault(entity, {})
            if rate is not None:
                rates[key] = rate
            else:
                rates.pop(key, None)
            if not rates:
                del self.quotas[entity]

    def image(self, levels: Mapping[str, int], directory_id: UUID, new_uuid: Callable[[], UUID]) -> Image:
        """`levels` are those of the features that the node begins with."""
        replay = Replay()
        for name, level in levels.items():
            replay.apply(FeatureLevelRecord(name=name, feature_level=level))
        for topic in self.topics.values():
            for record in self._of_topic(topic, directory_id):
                replay.apply(record)
        for record in self._others(new_uuid):
            replay.apply(record)
        return replay.image()

    def _of_topic(self, topic: Topic, directory_id: UUID) -> Iterator[Message]:
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        configs = as_for_controllers(topic.configs) if topic.name in INTERNAL_TOPICS else topic.configs
        yield from _settings(ResourceType.TOPIC, topic.name, configs)
        for index in range(topic.partition_count):
            state = self.partition_state(topic, index)
            yield PartitionRecord(
                partition_id=index,
                topic_id=topic.topic_id,
                replicas=list(state.replicas),
                isr=list(state.in_sync),
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.leader_epoch,
                directories=[directory_id],
            )

    def _others(self, new_uuid: Callable[[], UUID]) -> Iterator[Message]:
        for node, configs in self.broker_configs.items():
            yield from _settings(ResourceType.BROKER, node, configs)
        for user, credential in self.users.items():
            yield scram_record(ScramChange(user.name, user.mechanism, credential), credential)
        for acl in self.acls:
            yield acl_record(acl, new_uuid())
        for entity, rates in self.quotas.items():
            parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
            for key, rate in rates.items():
                yield ClientQuotaRecord(entity=parts, key=key, value=rate)
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)


def ids_apart_from(highest: int) -> int:
    """Where producer ids go on if `highest` was given out and others above it may have been."""
    return (highest // PRODUCER_IDS_APART + 1) * PRODUCER_IDS_APART


def _settings(kind: ResourceType, name: str, configs: Mapping[str, str]) -> Iterator[ConfigRecord]:
    for key, value in configs.items():
        yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
