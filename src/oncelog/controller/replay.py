"""From metadata records to an image.

Records are applied one by one in the order of the log. Those between BeginTransactionRecord and EndTransactionRecord
are held back and applied together, or dropped by AbortTransactionRecord. `image()` gives what is there by then; parts
that did not change are the same objects as in the image before. `image_after()` tells the difference too, and compares
only what records have touched.

A record that cannot follow those before it raises InvalidMetadata: an unknown topic or broker, a broker's epoch that is
not the registered one, an epoch or a producer id that goes back. What the replay holds by then should not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from oncelog.controller.delta import Delta, Touched
from oncelog.controller.entry_sizes import acl_bytes, quota_bytes, settings_bytes, user_bytes
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, ConfigResource, Image, ScramCredentialKey, TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.registrations import BrokerRegistration
from oncelog.controller.topic_rules import is_like_others, metric_name
from oncelog.core.config_resources import ResourceType
from oncelog.core.features import KRAFT_VERSION
from oncelog.core.ids import NodeId, uuid_to_text
from oncelog.protocol.messages.cluster_metadata import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from oncelog.protocol.schema import Message

ENDS: Final = (EndTransactionRecord, AbortTransactionRecord)
"""Records that may take many steps. All others take one. Where thousands come, their types are looked at: messages have
a metaclass, which `isinstance` asks each time."""

K = TypeVar("K")
V = TypeVar("V")


class _Section(Generic[K, V]):
    """A part of the image: copied when it is first changed, and again after it was given away."""

    def __init__(self, original: Mapping[K, V], size_of: Callable[[K, V], int] | None = None) -> None:
        self._size_of = size_of
        self.grown_bytes = 0
        """By which the entries have grown in all."""
        self.current: Mapping[K, V] = original
        self.touched: dict[K, None] = {}
        """What was put or dropped since it was given away, in this order."""
        self._own: dict[K, V] | None = None

    def put(self, key: K, value: V) -> None:
        if self._size_of is not None:
            old = self.current.get(key)
            self.grown_bytes += self._size_of(key, value) - (0 if old is None else self._size_of(key, old))
        self._writable()[key] = value
        self.touched[key] = None

    def drop(self, key: K) -> bool:
        """Whether it was there."""
        if key not in self.current:
            return False
        if self._size_of is not None:
            self.grown_bytes -= self._size_of(key, self.current[key])
        del self._writable()[key]
        self.touched[key] = None
        return True

    def _writable(self) -> dict[K, V]:
        if self._own is None:
            self.current = self._own = dict(self.current)
        return self._own

    def give_away(self) -> Mapping[K, V]:
        self._own = None
        self.touched = {}
        return self.current


class Replay:
    def __init__(self, image: Image = EMPTY_IMAGE) -> None:
        self._features = _Section(image.features)
        self._brokers = _Section(image.brokers)
        self._controllers = _Section(image.controllers)
        self._topics = _Section(image.topics)
        self._topic_ids = _Section(image.topic_ids)
        self._similar_names = _Section(image.similar_names)
        self._settings = _Section(image.settings, settings_bytes)
        self._quotas = _Section(image.quotas, quota_bytes)
        self._acls = _Section(image.acls, acl_bytes)
        self._scram = _Section(image.scram, user_bytes)
        self._first_entry_bytes = image.entry_bytes
        self._delegation_tokens = _Section(image.delegation_tokens)
        self._next_producer_id = image.next_producer_id
        self._own_partitions: dict[UUID, dict[int, PartitionImage]] = {}
        """The partitions of topics that changed since the last image."""
        self._transaction: list[Message] | None = None
        self._given = image
        """The last image, which all that was touched came after."""

    def apply(self, record: Message) -> None:
        apply_one = _REPLAY.get(type(record))
        if self._transaction is None and apply_one is not None:
            apply_one(self, record)
            return
        for _ in self.apply_in_steps(record):
            pass

    def apply_in_steps(self, record: Message) -> Iterator[None]:
        """Apply a record. The end of a transaction takes many steps, between which the image must not be read."""
        if isinstance(record, BeginTransactionRecord):
            self._begin(record)
        elif isinstance(record, ENDS):
            yield from self._finish(record)
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            _REPLAY[type(record)](self, record)

    @property
    def entry_bytes(self) -> int:
        sections = (self._settings, self._quotas, self._acls, self._scram)
        return self._first_entry_bytes + sum(section.grown_bytes for section in sections)

    @property
    def is_in_transaction(self) -> bool:
        return self._transaction is not None

    def image(self) -> Image:
        """The image, without the records of a transaction that has not ended."""
        self._own_partitions.clear()
        self._given = Image(
            features=self._features.give_away(),
            brokers=self._brokers.give_away(),
            controllers=self._controllers.give_away(),
            topics=self._topics.give_away(),
            topic_ids=self._topic_ids.give_away(),
            similar_names=self._similar_names.give_away(),
            settings=self._settings.give_away(),
            quotas=self._quotas.give_away(),
            next_producer_id=self._next_producer_id,
            acls=self._acls.give_away(),
            scram=self._scram.give_away(),
            delegation_tokens=self._delegation_tokens.give_away(),
            entry_bytes=self.entry_bytes,
        )
        return self._given

    def image_after(self, before: Image) -> Generator[None, None, tuple[Image, Delta]]:
        """The image, and its difference to `before`, found fast if `before` is the last image that was given."""
        touched = self._touched() if before is self._given else None
        image = self.image()
        return image, (yield from Delta.between_in_steps(before, image, touched))

    def _touched(self) -> Touched:
        return Touched(
            features=self._features.touched,
            brokers=self._brokers.touched,
            controllers=self._controllers.touched,
            topics=self._topics.touched,
            settings=self._settings.touched,
            quotas=self._quotas.touched,
            acls=self._acls.touched,
            scram=self._scram.touched,
            delegation_tokens=self._delegation_tokens.touched,
        )

    def _begin(self, record: BeginTransactionRecord) -> None:
        if self._transaction is not None:
            raise InvalidMetadata(f"metadata transaction {record.name!r} begins inside another one")
        self._transaction = []

    def _finish(self, record: EndTransactionRecord | AbortTransactionRecord) -> Iterator[None]:
        held, self._transaction = self._transaction, None
        if held is None:
            raise InvalidMetadata(f"{record} without a transaction that has begun")
        if isinstance(record, EndTransactionRecord):
            for each in held:
                self.apply(each)
                yield

    def _nothing(self, record: Message) -> None:
        """A record without effect: it only moves the end of the log, or is left from a migration from ZooKeeper."""

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        # Some controllers wrote one of kraft.version, whose level is in a control record (KAFKA-18979).
        if record.name == KRAFT_VERSION:
            return
        if record.feature_level == 0:
            self._features.drop(record.name)
        else:
            self._features.put(record.name, record.feature_level)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers.put(NodeId(record.broker_id), BrokerRegistration.from_record(record))

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        self._brokers.drop(NodeId(record.broker_id))

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        self._brokers.put(broker.broker_id, broker.merged(record))

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.put(broker.broker_id, replace(broker, is_fenced=True))

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.put(broker.broker_id, replace(broker, is_fenced=False))

    def _broker(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self._brokers.current.get(NodeId(broker_id))
        if broker is None:
            raise InvalidMetadata(f"broker {broker_id} is changed, but is not registered")
        if broker.epoch != epoch:
            raise InvalidMetadata(f"broker {broker_id} is changed in epoch {epoch}, but has epoch {broker.epoch}")
        return broker

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers.put(NodeId(record.controller_id), record)

    def _make_topic(self, record: TopicRecord) -> None:
        if record.topic_id in self._topics.current or record.name in self._topic_ids.current:
            raise InvalidMetadata(
                f"topic {record.name} is made with id {uuid_to_text(record.topic_id)}, but its name or id is taken"
            )
        own = self._own_partitions[record.topic_id] = {}
        self._topics.put(record.topic_id, TopicImage(record.name, record.topic_id, own))
        self._topic_ids.put(record.name, record.topic_id)
        if is_like_others(record.name):
            shared = metric_name(record.name)
            self._similar_names.put(shared, (*self._similar_names.current.get(shared, ()), record.name))

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record.topic_id)
        self._own_partitions.pop(topic.topic_id, None)
        self._topics.drop(topic.topic_id)
        self._topic_ids.drop(topic.name)
        self._forget_similar(topic.name)
        self._settings.drop(ConfigResource(ResourceType.TOPIC, topic.name))

    def _forget_similar(self, name: str) -> None:
        shared = metric_name(name)
        left = tuple(other for other in self._similar_names.current.get(shared, ()) if other != name)
        if left:
            self._similar_names.put(shared, left)
        else:
            self._similar_names.drop(shared)

    def _set_partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions(record.topic_id)
        new, old = PartitionImage.from_record(record), partitions.get(record.partition_id)
        if old is not None and (new.leader_epoch < old.leader_epoch or new.partition_epoch < old.partition_epoch):
            raise InvalidMetadata(
                f"partition {record.partition_id} of topic {self._topic(record.topic_id).name} goes back from leader "
                f"epoch {old.leader_epoch} and partition epoch {old.partition_epoch} to {new.leader_epoch} and "
                f"{new.partition_epoch}"
            )
        partitions[record.partition_id] = new

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self._partitions(record.topic_id)
        old = partitions.get(record.partition_id)
        if old is None:
            raise InvalidMetadata(
                f"partition {record.partition_id} of topic {self._topic(record.topic_id).name} is changed, but is not "
                "there"
            )
        partitions[record.partition_id] = old.merged(record)

    def _clear_elr(self, record: ClearElrRecord) -> None:
        """Clear the ELR of a topic, or of all topics if the record has no name."""
        if record.topic_name and record.topic_name not in self._topic_ids.current:
            raise InvalidMetadata(f"the ELR of topic {record.topic_name} is cleared, but the topic is not there")
        ids = [self._topic_ids.current[record.topic_name]] if record.topic_name else list(self._topics.current)
        for topic_id in ids:
            for index, partition in self._topic(topic_id).partitions.items():
                if partition.elr or partition.last_known_elr:
                    cleared = partition.merged(PartitionChangeRecord(eligible_leader_replicas=[], last_known_elr=[]))
                    self._partitions(topic_id)[index] = cleared

    def _topic(self, topic_id: UUID) -> TopicImage:
        topic = self._topics.current.get(topic_id)
        if topic is None:
            raise InvalidMetadata(f"the topic with id {uuid_to_text(topic_id)} is changed, but is not there")
        return topic

    def _partitions(self, topic_id: UUID) -> dict[int, PartitionImage]:
        """The partitions of a topic that is about to change."""
        own = self._own_partitions.get(topic_id)
        if own is None:
            topic = self._topic(topic_id)
            own = self._own_partitions[topic_id] = dict(topic.partitions)
            self._topics.put(topic_id, TopicImage(topic.name, topic_id, own))
        return own

    def _config(self, record: ConfigRecord) -> None:
        _set_entry(
            self._settings, ConfigResource(record.resource_type, record.resource_name), record.name, record.value
        )

    def _quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted({part.entity_type: part.entity_name for part in record.entity}.items()))
        _set_entry(self._quotas, entity, record.key, None if record.remove else record.value)

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise InvalidMetadata(
                f"the next producer id goes back from {self._next_producer_id} to {record.next_producer_id}"
            )
        self._next_producer_id = record.next_producer_id

    def _set_acl(self, record: AccessControlEntryRecord) -> None:
        self._acls.put(record.id, record)

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        if not self._acls.drop(record.id):
            raise InvalidMetadata(f"the ACL with id {uuid_to_text(record.id)} is removed, but is not there")

    def _set_scram(self, record: UserScramCredentialRecord) -> None:
        self._scram.put(ScramCredentialKey(record.name, record.mechanism), record)

    def _remove_scram(self, record: RemoveUserScramCredentialRecord) -> None:
        self._scram.drop(ScramCredentialKey(record.name, record.mechanism))

    def _set_delegation_token(self, record: DelegationTokenRecord) -> None:
        self._delegation_tokens.put(record.token_id, record)

    def _remove_delegation_token(self, record: RemoveDelegationTokenRecord) -> None:
        self._delegation_tokens.drop(record.token_id)


def _set_entry(section: _Section[K, Mapping[str, V]], key: K, name: str, value: V | None) -> None:
    """Sets or, without a value, removes one entry of the mapping at `key`, which is there only if it has entries."""
    entries = dict(section.current.get(key, {}))
    if value is None:
        entries.pop(name, None)
    else:
        entries[name] = value
    if entries:
        section.put(key, entries)
    else:
        section.drop(key)


_REPLAY: Final[dict[type[Message], Callable[[Replay, Any], None]]] = {
    RegisterBrokerRecord: Replay._register_broker,
    UnregisterBrokerRecord: Replay._unregister_broker,
    BrokerRegistrationChangeRecord: Replay._change_broker,
    FenceBrokerRecord: Replay._fence_broker,
    UnfenceBrokerRecord: Replay._unfence_broker,
    RegisterControllerRecord: Replay._register_controller,
    TopicRecord: Replay._make_topic,
    RemoveTopicRecord: Replay._remove_topic,
    PartitionRecord: Replay._set_partition,
    PartitionChangeRecord: Replay._change_partition,
    ClearElrRecord: Replay._clear_elr,
    ConfigRecord: Replay._config,
    ClientQuotaRecord: Replay._quota,
    FeatureLevelRecord: Replay._feature_level,
    ProducerIdsRecord: Replay._producer_ids,
    AccessControlEntryRecord: Replay._set_acl,
    RemoveAccessControlEntryRecord: Replay._remove_acl,
    UserScramCredentialRecord: Replay._set_scram,
    RemoveUserScramCredentialRecord: Replay._remove_scram,
    DelegationTokenRecord: Replay._set_delegation_token,
    RemoveDelegationTokenRecord: Replay._remove_delegation_token,
    NoOpRecord: Replay._nothing,
    ZkMigrationStateRecord: Replay._nothing,
}
