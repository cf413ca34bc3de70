"""The metadata store of one node: topics, their settings, broker settings, producer id blocks, incarnations.

Everything changes in two steps, as in the coordinators: a change is journalled as an entry, then `_apply` puts it
into the image. Loading applies the same entries. Entry kinds:

| kind | fields |
| --- | --- |
| start | incarnation: how often a broker was started on this folder; boot: of the machine, if that is known; |
| | doubtful: the last incarnation that began after the machine had gone down under a broker, -1 for none |
| topic | name, id, partitions, configs, born (incarnation), internal |
| partitions | name, count |
| topic_config | name, configs (all of them) |
| delete | name, id |
| broker_config | node ("" = all), configs |
| producer_ids | next: first id of no block yet |
| stop | incarnation: which start was stopped in order, nothing has changed since |

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

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from oncelog.cluster.journal import Journal, JournalEntry
from oncelog.cluster.partition_state import PartitionState
from oncelog.core.errors import KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId, ProducerId, TopicPartition, uuid_from_text, uuid_to_text
from oncelog.core.invariant import invariant

log = logging.getLogger("oncelog.server")

NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
PRODUCER_ID_BLOCK: Final = 1000
PRODUCER_IDS_APART: Final = 1 << 40
"""More than are handed out in practice. Where the last one handed out is not known, the next multiple comes next."""
JOURNAL_FILE: Final = "oncelog-metadata.journal"
_REWRITE_LINES_MIN: Final = 1000
_REWRITE_GROWTH: Final = 4
_REWRITE_RETRY_LINES: Final = 100
"""After a failed rewrite, the next one is tried when the journal has grown by so much again."""


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)
    born: int = 0


class MetadataStore:
    def __init__(self, folder: Path, node_id: NodeId) -> None:
        self._node_id = node_id
        self._journal = Journal(folder / JOURNAL_FILE)
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.incarnation = -1
        self.is_new = False
        self.is_cut = False
        """Whether the journal has lost its end, and `finish_adoption` has not made up for it yet."""
        self._stopped_incarnation: int | None = None
        self._boot_id: str | None = None
        self._doubtful_incarnation = -1
        self._next_producer_id = 0
        self._block = range(0)
        self._rewrite_above_lines = 0

    def open(
        self, *, stopped_incarnation: int | None = None, was_clean: bool = False, boot_id: str | None = None
    ) -> None:
        """Loads the image and counts this start.

        `stopped_incarnation` is what the folder says was the last to be stopped in order, None if it does not.
        """
        entries, torn_bytes = self._journal.open()
        for entry in entries:
            self._apply(entry)
        self.is_new = not entries
        if entries and torn_bytes:
            self.mark_cut(f"its last {torn_bytes} bytes are torn or damaged")
        elif entries and self._lacks_stop_of(stopped_incarnation):
            self.mark_cut(f"the stop of start {stopped_incarnation} is not in it")
        went_down = bool(entries) and not was_clean and (boot_id is None or boot_id != self._boot_id)
        incarnation = self.incarnation + 1
        self._boot_id = boot_id
        self._doubtful_incarnation = incarnation if went_down else self._doubtful_incarnation
        self._commit(self._start_entry(incarnation))

    def _start_entry(self, incarnation: int) -> JournalEntry:
        return {
            "kind": "start",
            "incarnation": incarnation,
            "boot": self._boot_id,
            "doubtful": self._doubtful_incarnation,
        }

    def doubtful_below_epoch(self, topic: Topic) -> int:
        """Batches of the topic with a lower leader epoch were the last of a log that may have lost its end; 0: none."""
        return self._doubtful_incarnation - topic.born if self._doubtful_incarnation >= 0 else 0

    def _lacks_stop_of(self, incarnation: int | None) -> bool:
        return incarnation is not None and self.incarnation <= incarnation != self._stopped_incarnation

    def mark_cut(self, reason: str) -> None:
        """Changes are kept in memory from here on until `finish_adoption` writes them all."""
        log.warning(
            "the metadata journal has lost its end: %s. Producer ids and epochs go on above all that the logs know; "
            "topics and partitions that it does not know are taken over, without their settings. Other settings may be "
            "those of before a change: check retention", reason,
        )  # fmt: skip
        self.is_cut = True

    def finish_adoption(self) -> None:
        """What a first start has found, or one on a journal that lost its end, becomes the journal: all or nothing."""
        self._journal.rewrite(self._image_entries())
        self.is_new = self.is_cut = False

    def note_stop(self) -> None:
        """The last change before a clean stop. The folder's marker is to name the incarnation."""
        self._commit({"kind": "stop", "incarnation": self.incarnation})

    def close(self) -> None:
        self._journal.close()

    def has_partition(self, topic: str, index: int) -> bool:
        known = self.topics.get(topic)
        return known is not None and 0 <= index < known.partition_count

    def partition_state(self, topic: Topic, index: int) -> PartitionState:
        """All partitions of one node are led by it, and have no other replica."""
        alone = (self._node_id,)
        return PartitionState(self._node_id, LeaderEpoch(self.incarnation - topic.born), replicas=alone, in_sync=alone)

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None when there is no such partition, or no longer."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partition_count:
            return None
        return self.partition_state(topic, partition.partition).leader

    def create_topic(self, name: str, partition_count: int, configs: Mapping[str, str], topic_id: uuid.UUID) -> Topic:
        self._commit(
            {
                "kind": "topic",
                "name": name,
                "id": uuid_to_text(topic_id),
                "partitions": partition_count,
                "configs": dict(configs),
                "born": self.incarnation,
            }
        )
        return self.topics[name]

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
            self.delete_topic(name)
        self._commit(_topic_entry(Topic(name, topic_id, partition_count, dict(configs), born)))
        return self.topics[name]

    def add_partitions(self, name: str, partition_count: int) -> None:
        self._commit({"kind": "partitions", "name": name, "count": partition_count})

    def set_topic_configs(self, name: str, configs: Mapping[str, str]) -> None:
        self._commit({"kind": "topic_config", "name": name, "configs": dict(configs)})

    def set_broker_configs(self, node: str, configs: Mapping[str, str]) -> None:
        self._commit({"kind": "broker_config", "node": node, "configs": dict(configs)})

    def delete_topic(self, name: str) -> None:
        self._commit({"kind": "delete", "name": name, "id": uuid_to_text(self.topics[name].topic_id)})

    def skip_producer_ids_above(self, highest: int) -> None:
        """Give out no id up to `highest`, which somebody has. Nothing changes if that is the case anyway.

        While it is not known which ones were given out, there may be others above it.
        """
        if self.has_given_out(highest) and not (self.is_new or self.is_cut):
            return
        highest = max(highest, self._next_producer_id - 1)
        self._commit({"kind": "producer_ids", "next": (highest // PRODUCER_IDS_APART + 1) * PRODUCER_IDS_APART})
        self._block = range(0)

    def has_given_out(self, producer_id: int) -> bool:
        """Or may have, as one of a block."""
        return producer_id < self._next_producer_id

    def raise_incarnation(self, incarnation: int) -> None:
        if incarnation > self.incarnation:
            if self._doubtful_incarnation == self.incarnation:
                self._doubtful_incarnation = incarnation
            self._commit(self._start_entry(incarnation))

    def next_producer_id(self) -> ProducerId:
        """Ids are reserved a block at a time, so that a crash can waste some and never hand one out twice."""
        if not self._block:
            first = self._next_producer_id
            self._commit({"kind": "producer_ids", "next": first + PRODUCER_ID_BLOCK})
            self._block = range(first, first + PRODUCER_ID_BLOCK)
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    def _commit(self, entry: JournalEntry) -> None:
        if not self.is_new and not self.is_cut:
            self._journal.append(entry)
            self._apply(entry)
            self._rewrite_if_grown()
        else:
            self._apply(entry)

    def _rewrite_if_grown(self) -> None:
        """A long journal is as good as a short one: if it cannot be rewritten, the change that it was for holds."""
        needed = len(self.topics) + len(self.broker_configs) + 2
        if self._journal.lines <= max(_REWRITE_LINES_MIN, _REWRITE_GROWTH * needed, self._rewrite_above_lines):
            return
        try:
            self._journal.rewrite(self._image_entries())
            self._rewrite_above_lines = 0
        except KafkaError as error:
            log.error("the metadata journal was not rewritten, which will be tried again: %s", error)
            self._rewrite_above_lines = self._journal.lines + _REWRITE_RETRY_LINES

    def _image_entries(self) -> list[JournalEntry]:
        entries: list[JournalEntry] = [
            self._start_entry(self.incarnation),
            {"kind": "producer_ids", "next": self._next_producer_id},
        ]
        entries += [_topic_entry(topic) for topic in self.topics.values()]
        entries += [
            {"kind": "broker_config", "node": node, "configs": configs} for node, configs in self.broker_configs.items()
        ]
        return entries

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
                topic_id = uuid_from_text(entry["id"])
                topic = Topic(entry["name"], topic_id, entry["partitions"], dict(entry["configs"]), entry["born"])
                self.topics[topic.name] = self.topics_by_id[topic_id] = topic
            case "partitions":
                self.topics[entry["name"]].partition_count = entry["count"]
            case "topic_config":
                self.topics[entry["name"]].configs = dict(entry["configs"])
            case "delete":
                del self.topics_by_id[self.topics.pop(entry["name"]).topic_id]
            case "broker_config":
                self.broker_configs[entry["node"]] = dict(entry["configs"])
            case "producer_ids":
                self._next_producer_id = entry["next"]
            case unknown:
                raise ValueError(f"the metadata journal has an entry of unknown kind {unknown!r}: a newer Oncelog?")


def _topic_entry(topic: Topic) -> JournalEntry:
    return {
        "kind": "topic",
        "name": topic.name,
        "id": uuid_to_text(topic.topic_id),
        "partitions": topic.partition_count,
        "configs": topic.configs,
        "born": topic.born,
    }
