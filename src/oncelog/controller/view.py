"""What decisions look at: the image, with the controller's own settings below those of topics and brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast
from uuid import UUID

from oncelog.controller.image import Image, TopicImage
from oncelog.controller.partition_change import Election, PartitionChange
from oncelog.controller.partition_image import MIGRATING_DIRECTORY, PartitionImage
from oncelog.controller.registrations import BrokerRegistration
from oncelog.core.config import ConfigValue, Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import ELR_VERSION
from oncelog.core.ids import NodeId
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import BrokerSettings, known_settings

MIN_ISR: Final = "min.insync.replicas"
UNASSIGNED_DIRECTORY: Final = UUID(int=1)
LOST_DIRECTORY: Final = UUID(int=2)


class Place(NamedTuple):
    """A partition and what it belongs to."""

    topic: TopicImage
    partition_index: int
    partition: PartitionImage


class View:
    def __init__(self, image: Image, static: Settings, node_id: int) -> None:
        self.image = image
        self.static = static
        self._node_id = node_id
        dynamic = {
            resource.name: known_settings(static.table, configs, f"broker {resource.name}".strip())
            for resource, configs in image.settings.items()
            if resource.type == ResourceType.BROKER and resource.name in ("", str(node_id))
        }
        self.settings = BrokerSettings(static, dynamic, str(node_id))
        """As a broker with the settings of this controller would have them."""
        self._inherited = self.settings.topic_settings({})

    def after(self, image: Image) -> View:
        if image.settings is not self.image.settings:
            return View(image, self.static, self._node_id)
        view = View.__new__(View)
        view.image, view.static, view._node_id = image, self.static, self._node_id
        view.settings, view._inherited = self.settings, self._inherited
        return view

    @property
    def has_elr(self) -> bool:
        return self.image.features.get(ELR_VERSION, 0) > 0

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        return self.image.brokers.get(NodeId(broker_id))

    def check_epoch(self, broker_id: int, epoch: int) -> BrokerRegistration:
        """Raises STALE_BROKER_EPOCH."""
        broker = self.broker(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
        if broker.epoch != epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
            )
        return broker

    def is_active(self, broker_id: int) -> bool:
        broker = self.broker(broker_id)
        return broker is not None and not broker.is_fenced and not broker.in_controlled_shutdown

    def directory_of(self, broker_id: int) -> UUID:
        """The directory of a new replica on a broker. A broker with several directories reports later which one it
        took."""
        broker = self.broker(broker_id)
        if broker is None or len(broker.directories) > 1:
            return UNASSIGNED_DIRECTORY
        return broker.directories[0] if broker.directories else MIGRATING_DIRECTORY

    def _topic_value(self, topic: str, name: str) -> ConfigValue | None:
        """One setting of a topic, without parsing the others: it is asked for every partition of a broker that comes or
        goes."""
        own = self.image.topic_settings(topic).get(name)
        return self._inherited.get(name) if own is None else TOPIC_CONFIG[name].parse(own)

    def min_isr(self, place: Place) -> int:
        """No more than the partition has replicas, by which its leader commits too.

        Kafka's controllers count those of the topic's first partition. Where that has fewer, they forget who is
        eligible although the leader has committed nothing without them.
        """
        wanted = cast(int, self._topic_value(place.topic.name, MIN_ISR))
        return min(wanted, len(place.partition.replicas))

    def allows_unclean(self, topic: str) -> bool:
        return bool(self._topic_value(topic, "unclean.leader.election.enable"))

    def places(self) -> Iterator[Place]:
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                yield Place(topic, index, partition)

    def change(self, place: Place, is_alive: Callable[[int], bool] | None = None) -> PartitionChange:
        """A change of a partition that leaves all as it is, unless its leader is not acceptable."""
        partition = place.partition
        directories = dict(zip(partition.replicas, partition.directories, strict=True))
        alive = self.is_active if is_alive is None else is_alive

        def is_acceptable(broker_id: int) -> bool:
            return alive(broker_id) and self._is_online(broker_id, directories.get(NodeId(broker_id)))

        return PartitionChange(
            partition, is_acceptable, self.directory_of, min_isr=self.min_isr(place), has_elr=self.has_elr
        )

    def change_by_settings(self, place: Place, is_alive: Callable[[int], bool] | None = None) -> PartitionChange:
        """An unclean leader is elected if the topic allows it."""
        change = self.change(place, is_alive)
        if self.allows_unclean(place.topic.name):
            change.election = Election.UNCLEAN
        return change

    def _is_online(self, broker_id: int, directory: UUID | None) -> bool:
        if directory in (None, UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return True
        broker = self.broker(broker_id)
        known = () if broker is None else broker.directories
        return directory != LOST_DIRECTORY and (not known or directory in known)
