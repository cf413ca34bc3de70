"""What must hold of controllers that decide for brokers, whatever happens.

epochs      the epochs of a partition never go back, and a new leader has a higher one (invariant 10)
image       whoever has read as far as an offset has the image that the log before it amounts to (10)
one writer  an epoch has one controller, and from the moment it is won nothing of a lower one is written (11)
committed   no decision was answered before its records were in the log (11)
leaders     a leader is in sync and in service; so are all that are in sync, which are replicas (9)
processes   who is in sync is the process of the broker that its leader has proposed, and not the next one (3)
candidates  who may be elected without being in sync (ELR) is a replica, has all that could be committed, and has lost
            nothing in a crash; nobody is kept so while enough are in sync (3, 9)
liveness    once everything works again, all is led and in sync, moves have ended, and nobody waits (16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any
from uuid import UUID

from oncelog.cluster.kraft_metadata import SnapshotName
from oncelog.cluster.quorum_log import Leader
from oncelog.controller.broker_changes import UNFENCE
from oncelog.controller.image import EMPTY_IMAGE, ConfigResource, Image, TopicImage
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.replay import Replay
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import NodeId
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ChangedPartition,
)
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from oncelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from oncelog.protocol.schema import Message
from tests.metadata_log_simulation import judge as of_log
from tests.metadata_log_simulation.fake_zookeeper import Ensemble

NO_LEADER = -1
_SECTIONS = [field.name for field in fields(Image)]


class PromiseBroken(AssertionError):
    pass


class Judge(of_log.Judge):
    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble)
        self.broken: list[str] = []
        """Noted and raised by the history: a controller would take an error for one of its own."""
        self.image = EMPTY_IMAGE
        self._replay = Replay()
        self._images: dict[int, Image] = {0: EMPTY_IMAGE}
        self._equal: dict[str, tuple[Image, Image]] = {}
        """What a node had when it was last looked at, and what the log amounted to. They were equal."""
        self._made: dict[UUID, str] = {}
        self._deleted: set[str] = set()
        self._registered: set[tuple[int, int]] = set()
        self._unfenced: set[tuple[int, int]] = set()
        self._partition_epochs: dict[tuple[Any, int], int] = {}
        self._has_all: dict[tuple[UUID, int], set[int]] = {}
        """The replicas that have all that could be committed, by partition."""
        self._crashed: set[UUID] = set()
        """Processes that began after a crash of the one before."""

    def on_start(self, incarnation_id: UUID, *, after_crash: bool) -> None:
        """A broker starts, and registers later."""
        if after_crash:
            self._crashed.add(incarnation_id)

    def expect(self, promise: str, holds: bool, text: str, *parts: object) -> None:
        """`text % parts` is made only if it is needed: to show an image takes longer than to look at it."""
        if not holds:
            self.broken.append(f"{promise}: {text % parts}")

    def raise_if_broken(self) -> None:
        self.log()
        if self.broken:
            raise PromiseBroken(self.broken[0])

    # The log

    def _take(self, batch: bytes) -> None:
        self._log.append(batch)
        self._known.add(batch)
        for each in read_batches(batch):
            for record in each.records:
                self._replay.apply(record.known())
                self._count(record.known())
        before, self.image = self.image, self._replay.image()
        self._images[read_header(batch).next_offset] = self.image
        if not self._replay.is_in_transaction:
            self._look_at_topics(before)

    def _count(self, record: Message) -> None:
        """Also what the rest of the batch makes undone."""
        if isinstance(record, PartitionRecord):
            key = record.topic_id, record.partition_id
            self._partition_epochs[key], self._has_all[key] = record.partition_epoch, set(record.isr)
        elif isinstance(record, PartitionChangeRecord):
            key = record.topic_id, record.partition_id
            self._partition_epochs[key] += 1
            self._has_all[key] |= set(record.isr or ())  # within a batch nothing is committed
        elif isinstance(record, ClearElrRecord):
            for topic in self._replay.image().topics.values():
                for index, partition in topic.partitions.items():
                    self._partition_epochs[topic.topic_id, index] = partition.partition_epoch
        elif isinstance(record, TopicRecord):
            self._made[record.topic_id] = record.name
        elif isinstance(record, RemoveTopicRecord):
            self._deleted.add(self._made[record.topic_id])
        elif isinstance(record, RegisterBrokerRecord):
            self._registered.add((record.broker_id, record.broker_epoch))
            if record.incarnation_id in self._crashed:
                self._crashed.discard(record.incarnation_id)  # it may be registered again, and has lost nothing since
                for has_all in self._has_all.values():
                    has_all.discard(record.broker_id)
        elif isinstance(record, BrokerRegistrationChangeRecord) and record.fenced == UNFENCE:
            self._unfenced.add((record.broker_id, record.broker_epoch))

    def _look_at_topics(self, before: Image) -> None:
        now = self.image
        for id_, topic in now.topics.items():
            old = before.topics.get(id_)
            for index, partition in topic.partitions.items():
                place = f"{topic.name}-{index}"
                self._check_epochs(place, None if old is None else old.partitions.get(index), partition)
                self._check_leader(place, partition)
                self._check_candidates(place, topic, index, None if old is None else old.partitions.get(index))

    def _check_epochs(self, place: str, old: PartitionImage | None, new: PartitionImage) -> None:
        if old is not None and old is not new:
            is_back = new.leader_epoch < old.leader_epoch or new.partition_epoch < old.partition_epoch
            self.expect("epochs", not is_back, "those of %s go back: %s %s", place, old, new)
            has_changed = new != old and new.partition_epoch == old.partition_epoch
            self.expect("epochs", not has_changed, "%s has changed in the same epoch: %s %s", place, old, new)
            is_same = new.leader != old.leader and new.leader_epoch == old.leader_epoch
            self.expect("epochs", not is_same, "%s has another leader in the same epoch: %s %s", place, old, new)

    def _check_leader(self, place: str, partition: PartitionImage) -> None:
        is_led = partition.leader != NO_LEADER
        self.expect("leaders", not is_led or partition.leader in partition.isr, "%s: not in sync: %s", place, partition)
        self.expect("leaders", set(partition.isr) <= set(partition.replicas), "%s: no replica: %s", place, partition)
        if is_led:
            for member in partition.isr:
                broker = self.image.brokers.get(member)
                serves = broker is not None and not broker.is_fenced and not broker.in_controlled_shutdown
                self.expect(
                    "leaders", serves, "%s: %s is in sync and not in service: %s %s", place, member, partition, broker
                )

    def _check_candidates(self, place: str, topic: TopicImage, index: int, old: PartitionImage | None) -> None:
        """A leader commits while enough are in sync, and then whoever is not may lack something."""
        partition, key = topic.partitions[index], (topic.topic_id, index)
        isr, elr = set(partition.isr), set(partition.elr)
        is_apart = not isr & elr and elr <= set(partition.replicas)
        self.expect("candidates", is_apart, "%s: %s", place, partition)
        is_enough = len(isr) >= self._minimum(topic, partition)
        self.expect("candidates", not (is_enough and elr), "%s: they are not needed: %s", place, partition)
        known = self._has_all[key]
        if not partition.is_recovering:
            self.expect("candidates", elr <= known, "%s: only %s have all: %s", place, known, partition)
            is_elected = old is not None and old.leader == NO_LEADER != partition.leader
            is_right = not is_elected or partition.leader in known
            self.expect("candidates", is_right, "%s: only %s have all, and not the leader: %s", place, known, partition)
        begins_anew = is_enough or partition.is_recovering
        self._has_all[key] = isr if begins_anew else known & set(partition.replicas)

    def _minimum(self, topic: TopicImage, partition: PartitionImage) -> int:
        everywhere = self.image.settings.get(ConfigResource(ResourceType.BROKER, ""), {})
        wanted = {**everywhere, **self.image.topic_settings(topic.name)}.get("min.insync.replicas", "1")
        return min(int(wanted), len(partition.replicas))

    # Nodes

    def on_image(self, who: str, image: Callable[[], Image], end_offset: int) -> None:
        """Of a node that has read so far."""
        self.log()
        known = self._images.get(end_offset)
        self.expect("image", known is not None, "%s has read to %s, where nothing ends", who, end_offset)
        if known is not None:
            found = image()
            is_equal = equal_images(found, known, *self._equal.get(who, (EMPTY_IMAGE, EMPTY_IMAGE)))
            self.expect("image", is_equal, "%s has another one at %s", who, end_offset)
            if is_equal:
                self._equal[who] = found, known

    def on_active(self, leader: Leader) -> None:
        before = self._leaders.setdefault(leader.epoch, leader.node_id)
        self.expect("one writer", before == leader.node_id, "%s and %s", before, leader)

    def on_name(self, name: SnapshotName, image: Image) -> None:
        self.on_image("a snapshot", lambda: image, name.end_offset)

    # Answers, in the moment in which a controller gives them

    def on_answer(self, request: Message, answer: Message) -> None:
        self.log()
        check = _ANSWERS.get(type(request))
        if check is not None:
            check(self, request, answer)

    def _on_created(self, request: CreateTopicsRequest, answer: CreateTopicsResponse) -> None:
        for topic in answer.topics:
            self.expect(
                "committed", bool(topic.error_code) or topic.name in self._made.values(), "made: %s", topic.name
            )

    def _on_deleted(self, request: DeleteTopicsRequest, answer: DeleteTopicsResponse) -> None:
        for topic in answer.responses:
            self.expect("committed", bool(topic.error_code) or topic.name in self._deleted, "deleted: %s", topic.name)

    def _on_registered(self, request: BrokerRegistrationRequest, answer: BrokerRegistrationResponse) -> None:
        known = (request.broker_id, answer.broker_epoch) in self._registered
        self.expect("committed", bool(answer.error_code) or known, "registered: %s", request.broker_id)

    def _on_heartbeat(self, request: BrokerHeartbeatRequest, answer: BrokerHeartbeatResponse) -> None:
        known = (request.broker_id, request.broker_epoch) in self._unfenced
        is_fenced = bool(answer.error_code) or answer.is_fenced
        self.expect("committed", is_fenced or known, "unfenced: %s", request.broker_id)

    def _on_altered(self, request: AlterPartitionRequest, answer: AlterPartitionResponse) -> None:
        proposed = {
            (topic.topic_id, change.partition_index): change.new_isr_with_epochs
            for topic in request.topics
            for change in topic.partitions
        }
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    continue
                key = topic.topic_id, partition.partition_index
                known = self._partition_epochs.get(key, -1)
                self.expect("committed", known >= partition.partition_epoch, "in sync: %s", partition)
                # A late answer may be about a topic that is deleted since: nothing more was noted of its partitions.
                if known == partition.partition_epoch and topic.topic_id in self.image.topics:
                    for member in proposed[key]:
                        if member.broker_id in partition.isr:  # a move that ends with it takes replicas away
                            self._check_process(member, partition)

    def _check_process(self, member: BrokerState, partition: ChangedPartition) -> None:
        broker = self.image.brokers.get(NodeId(member.broker_id))
        is_same = broker is not None and broker.epoch == member.broker_epoch
        self.expect("processes", is_same, "%s is in sync and proposed was %s: %s", broker, member, partition)

    # At the end

    def check_led(self) -> None:
        """Before anybody helps. All brokers run."""
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                is_led = partition.leader != NO_LEADER or not (partition.isr or partition.elr)
                self.expect("liveness", is_led, "%s-%s is led by nobody: %s", topic.name, index, partition)

    def check_settled(self, brokers: set[int]) -> None:
        """`brokers` are all that run."""
        for topic in self.image.topics.values():
            self._check_topic(topic, brokers)

    def _check_topic(self, topic: TopicImage, brokers: set[int]) -> None:
        for index, partition in topic.partitions.items():
            place, wanted = f"{topic.name}-{index}", set(partition.replicas) & brokers
            is_led = partition.leader in wanted or not wanted
            self.expect("liveness", is_led, "%s has no leader: %s", place, partition)
            if is_led and wanted:
                self.expect("liveness", set(partition.isr) == wanted, "%s is not in sync: %s", place, partition)
            if wanted == set(partition.replicas):
                is_moved = not partition.adding_replicas and not partition.removing_replicas
                self.expect("liveness", is_moved, "%s is still moved: %s", place, partition)


def equal_images(one: Image, other: Image, one_before: Image, other_before: Image) -> bool:
    """Whether two images are equal, if those before them were: what is the same object as before is not compared."""
    for name in _SECTIONS:
        new, new_other = getattr(one, name), getattr(other, name)
        old, old_other = getattr(one_before, name), getattr(other_before, name)
        if new is old and new_other is old_other:
            continue
        if not isinstance(new, dict):
            if new != new_other:
                return False
        elif new.keys() != new_other.keys():
            return False
        else:
            for key, value in new.items():
                is_same = value is old.get(key) and new_other[key] is old_other.get(key)
                if not is_same and value != new_other[key]:
                    return False
    return True


_ANSWERS: Mapping[type[Message], Callable[[Judge, Any, Any], None]] = {
    CreateTopicsRequest: Judge._on_created,
    DeleteTopicsRequest: Judge._on_deleted,
    BrokerRegistrationRequest: Judge._on_registered,
    BrokerHeartbeatRequest: Judge._on_heartbeat,
    AlterPartitionRequest: Judge._on_altered,
}
