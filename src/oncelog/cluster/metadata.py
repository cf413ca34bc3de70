"""The metadata store of one node: topics, settings, users, ACLs, producer id blocks, incarnations.

Everything changes in two steps, as in the coordinators: a change is journalled as an entry, then `_apply` puts it
into the image, and the followers of the metadata are called. Loading applies the same entries. A broker that serves
proposes its changes (`propose`): they are decided in turn, written and fsynced by a worker, many with one fsync, and
applied in order when they are on disk. At the start and the stop, when nobody waits for an answer, `commit` does
the same on the spot. `metadata_entries` has the kinds of entries.

A partition's leader epoch is the number of broker starts since its topic was made: it grows with every change of
leadership, as in a cluster, without a write per partition.

The first start on a folder journals nothing before `finish_adoption`: that puts all that was found into place at once,
so that a start which is interrupted earlier is followed by another first one.

A journal may have lost its end: a last line that is damaged, a copy from before, a file that somebody has cut. It shows
by the bad line, or because the journal does not end with the stop that the folder's marker of a clean stop names, or by
epochs in the logs that it has not come to. Such a start is like a first one: what is missing is found out from the logs
(see `adoption`) and put into place by `finish_adoption`.
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from oncelog.cluster.journal import Journal, JournalDamaged, JournalEntry
from oncelog.cluster.metadata_entries import (
    ScramUser,
    Topic,
    acl_of,
    acls_entry,
    broker_config_entry,
    delete_entry,
    given_users,
    producer_ids_entry,
    quota_changes,
    quotas_entry,
    removed_users,
    secret_entry,
    topic_entry,
    topic_of,
    users_entry,
)
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.topic_rules import metric_name
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise, gather
from oncelog.core.worker import Worker
from oncelog.security.acl import Acl
from oncelog.security.quotas import Entity
from oncelog.security.scram import ScramCredential

log = logging.getLogger("oncelog.server")

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
PRODUCER_IDS_APART: Final = 1 << 40
"""More than are handed out in practice. Where the last one handed out is not known, the next multiple comes next."""
_REWRITE_CHANGES_MIN: Final = 1000
_REWRITE_GROWTH: Final = 4
_REWRITE_RETRY_CHANGES: Final = 100
"""After a failed rewrite, the next one is tried when the journal has grown by so much again."""


class MetadataChange(NamedTuple):
    """What has been applied, for those who follow the metadata."""

    kind: str
    topic: Topic | None = None
    """The one that it is about, as it is now; one that is deleted, as it was."""


class _Proposal(NamedTuple):
    subject: str
    decide: Callable[[], JournalEntry | None]
    promise: Promise[KafkaError | None]


class Metadata:
    """What a broker knows of topics, settings, users and ACLs, and who is told when it changes.

    It comes from the broker's own journal (`MetadataStore`), or in a cluster from the controllers
    (`image_metadata.ImageMetadata`).
    """

    def __init__(self) -> None:
        self.followers: list[Callable[[MetadataChange], Promise[None] | None]] = []
        """Called with each change. A follower that needs the disk returns a promise, which the answer and the next
        decisions wait for."""
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.partitions_in_all = 0
        self.metric_names: dict[str, str] = {}
        """Topics by their name with '_' for '.': Kafka's metrics do not tell them apart."""
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.users: dict[ScramUser, ScramCredential] = {}
        self.acls: dict[Acl, None] = {}
        """A set that keeps its order."""
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.secret: bytes | None = None
        self.incarnation = -1

    def has_partition(self, topic: str, index: int) -> bool:
        known = self.topics.get(topic)
        return known is not None and 0 <= index < known.partition_count

    def ids_of(self, names: Iterable[str]) -> dict[str, uuid.UUID]:
        """The ids of those topics that exist, by name."""
        return {name: self.topics[name].topic_id for name in names if name in self.topics}

    def partition_state(self, topic: Topic, index: int) -> PartitionState:
        raise NotImplementedError

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None when there is no such partition, or no longer."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partition_count:
            return None
        return self.partition_state(topic, partition.partition).leader

    def doubtful_below_epoch(self, topic: Topic) -> int:
        """Batches of the topic with a lower leader epoch were the last of a log that may have lost its end; 0: none."""
        return 0

    def propose(self, subject: str, decide: Callable[[], JournalEntry | None]) -> Promise[KafkaError | None]:
        """Promises that a change is on disk and applied, or the reason why there is none.

        `decide` is called when no other change of the same subject is on its way, so that it can rely on the image. It
        returns the entry to write, None where there is nothing to change, and raises KafkaError to refuse.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is kept on disk, unless a subclass says otherwise."""

    def _tell(self, change: MetadataChange) -> list[Promise[None]]:
        followed: list[Promise[None]] = []
        for follower in self.followers:
            try:
                promise = follower(change)
            except Exception:
                log.exception("a change of the metadata is applied, but acting on it failed: %s", change.kind)
            else:
                followed += [promise] if promise is not None else []
        return followed


class MetadataStore(Metadata):
    def __init__(self, folder: Path, node_id: NodeId, worker: Worker) -> None:
        super().__init__()
        self._node_id = node_id
        self._states: dict[LeaderEpoch, PartitionState] = {}
        """Of all partitions with this epoch: one per start of the broker in which a topic was made."""
        self._journal = Journal(folder / JOURNAL_FILE)
        self._worker = worker
        self._proposals: list[_Proposal] = []
        self._is_writing = False
        self.is_new = False
        self.is_cut = False
        """Whether the journal has lost its end, and `finish_adoption` has not made up for it yet."""
        self._stopped_incarnation: int | None = None
        self._boot_id: str | None = None
        self._doubtful_incarnation = -1
        self.next_producer_id = 0
        """The first of no block yet."""
        self._rewrite_above = 0

    def open(
        self, *, stopped_incarnation: int | None = None, was_clean: bool = False, boot_id: str | None = None
    ) -> None:
        """Loads the image and counts this start.

        `stopped_incarnation` is what the folder says was the last to be stopped in order, None if it does not.
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
        """Load the image of the journal without starting a broker. Returns how many bytes at its end are torn."""
        entries, torn_bytes = self._journal.open()
        for entry in entries:
            self._apply(entry)
        self.is_new = not entries
        return torn_bytes

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Changes within are made while no broker runs: a clean stop before them stays one."""
        was_stopped = self._stopped_incarnation is not None
        yield
        if was_stopped:
            self.note_stop()

    def _start_entry(self, incarnation: int) -> JournalEntry:
        return {
            "kind": "start",
            "incarnation": incarnation,
            "boot": self._boot_id,
            "doubtful": self._doubtful_incarnation,
        }

    def doubtful_below_epoch(self, topic: Topic) -> int:
        return self._doubtful_incarnation - topic.born if self._doubtful_incarnation >= 0 else 0

    def _lacks_stop_of(self, incarnation: int | None) -> bool:
        return incarnation is not None and self.incarnation <= incarnation != self._stopped_incarnation

    def mark_cut(self, reason: str) -> None:
        """Changes are kept in memory from here on until `finish_adoption` writes them all."""
        log.warning(
            "the metadata journal has lost its end: %s. Producer ids and epochs go on above all that the logs know; "
            "topics and partitions that it does not know are taken over, without their settings. Other settings, users "
            "and ACLs may be those of before a change: check retention, and who may do what", reason,
        )  # fmt: skip
        self.is_cut = True

    def finish_adoption(self) -> None:
        """What a first start has found, or one on a journal that lost its end, becomes the journal: all or nothing."""
        self._journal.rewrite(self._image_entries())
        self.is_new = self.is_cut = False

    def note_stop(self) -> None:
        """The last change before a clean stop. The folder's marker is to name the incarnation."""
        if self._is_writing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a change of the metadata is still being written")
        self.commit({"kind": "stop", "incarnation": self.incarnation})

    def close(self) -> None:
        self._journal.close()

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

    def propose(self, subject: str, decide: Callable[[], JournalEntry | None]) -> Promise[KafkaError | None]:
        invariant(not self.is_new and not self.is_cut, "changes are proposed once the image is known")
        promise: Promise[KafkaError | None] = Promise()
        self._proposals.append(_Proposal(subject, decide, promise))
        self._write_next()
        return promise

    def _write_next(self) -> None:
        while self._proposals and not self._is_writing:
            self._is_writing = True
            waiting, self._proposals = self._proposals, []
            written: dict[str, tuple[_Proposal, JournalEntry]] = {}
            for proposal in waiting:
                if proposal.subject in written:
                    self._proposals.append(proposal)
                    continue
                entry = self._decide(proposal)
                if entry is not None:
                    written[proposal.subject] = (proposal, entry)
            self._write(list(written.values()))

    def _decide(self, proposal: _Proposal) -> JournalEntry | None:
        error = None
        try:
            entry = proposal.decide()
            if entry is not None:
                return entry
        except Exception as refusal:  # noqa: BLE001  one that is no KafkaError is logged
            error = _kafka_error(refusal)
        _resolve(proposal.promise, error)
        return None

    def _write(self, written: list[tuple[_Proposal, JournalEntry]]) -> None:
        if not written:
            self._is_writing = False
            return
        entries = [entry for _, entry in written]

        def done(result: Exception | None) -> None:
            error = _kafka_error(result)
            followed = [promise for entry in entries if error is None for promise in self._apply_and_tell(entry)]
            gather(followed).then(lambda _: settle(error))

        def settle(error: KafkaError | None) -> None:
            for proposal, _ in written:
                _resolve(proposal.promise, error)
            self._rewrite_if_grown()

        self._worker.run(lambda: self._journal.append(*entries)).then(done)

    def commit(self, entry: JournalEntry) -> None:
        """Change the metadata at the start or the stop. The change is on disk and applied when this returns."""
        invariant(not self._is_writing, "the metadata is changed on the spot while a worker writes to its journal")
        if not self.is_new and not self.is_cut:
            self._journal.append(entry)
        self._apply_and_tell(entry)

    def _rewrite_if_grown(self) -> None:
        """If the journal cannot be rewritten it only stays long: the changes in it hold."""
        needed = len(self.topics) + len(self.broker_configs) + len(self.users) + len(self.acls) + len(self.quotas) + 2
        if self._journal.changes <= max(_REWRITE_CHANGES_MIN, _REWRITE_GROWTH * needed, self._rewrite_above):
            self._end_writing()
            return
        entries = self._image_entries()

        def done(result: Exception | None) -> None:
            self._rewrite_above = 0
            if result is not None:
                log.error("the metadata journal was not rewritten, which will be tried again: %s", result)
                self._rewrite_above = self._journal.changes + _REWRITE_RETRY_CHANGES
            self._end_writing()

        self._worker.run(lambda: self._journal.rewrite(entries)).then(done)

    def _end_writing(self) -> None:
        self._is_writing = False
        self._write_next()

    def _image_entries(self) -> list[JournalEntry]:
        entries: list[JournalEntry] = [
            self._start_entry(self.incarnation),
            producer_ids_entry(self.next_producer_id),
        ]
        entries += [topic_entry(topic) for topic in self.topics.values()]
        entries += [broker_config_entry(node, configs) for node, configs in self.broker_configs.items()]
        entries += [users_entry(self.users)] if self.users else []
        entries += [acls_entry(self.acls)] if self.acls else []
        quotas = [(entity, key, rate) for entity, rates in self.quotas.items() for key, rate in rates.items()]
        entries += [quotas_entry(quotas)] if quotas else []
        entries += [secret_entry(self.secret)] if self.secret is not None else []
        return entries

    def _apply_and_tell(self, entry: JournalEntry) -> list[Promise[None]]:
        return self._tell(self._apply(entry))

    def _apply(self, entry: JournalEntry) -> MetadataChange:
        self._stopped_incarnation = None
        topic: Topic | None = None
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
                self.metric_names[metric_name(topic.name)] = topic.name
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
                self.metric_names.pop(metric_name(topic.name), None)
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
                    f"{self._journal.path} has an entry of kind {unknown!r}, which this version does not know: a newer "
                    "Oncelog has used the folder. Use that version, or restore the folder from a copy of before"
                )
        return MetadataChange(entry["kind"], topic)

    def _apply_quotas(self, entry: JournalEntry) -> None:
        for entity, key, rate in quota_changes(entry):
            rates = self.quotas.setdefault(entity, {})
            if rate is not None:
                rates[key] = rate
            else:
                rates.pop(key, None)
            if not rates:
                del self.quotas[entity]


def ids_apart_from(highest: int) -> int:
    """Where producer ids go on if `highest` was given out and others above it may have been."""
    return (highest // PRODUCER_IDS_APART + 1) * PRODUCER_IDS_APART


def topic_subject(name: str) -> str:
    """The subject of changes of a topic. Names that differ in '.' and '_' only are one: see `TopicCatalog`."""
    return f"topic {name.replace('.', '_')}"


def _kafka_error(error: Exception | None) -> KafkaError | None:
    if error is None or isinstance(error, KafkaError):
        return error
    log.error("a change of the metadata failed", exc_info=error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _resolve(promise: Promise[KafkaError | None], error: KafkaError | None) -> None:
    """An error of one callback does not keep the others from their turn."""
    try:
        promise.resolve(error)
    except Exception:
        log.exception("a callback for a change of the metadata failed")
