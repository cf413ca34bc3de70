"""What the entries of a journal of earlier versions say, as an image: a folder that has one is taken over, once.

Nothing writes such entries any more (see `journal`).

| kind | fields |
| --- | --- |
| start | incarnation: how often a broker was started on this folder; boot: of the machine, if that is known; |
| | doubtful: the last incarnation that began after the machine had gone down under a broker, -1 for none |
| topic | name, id, partitions, configs, born (incarnation) |
| partitions | name, count |
| topic_config | name, configs (all of them) |
| delete | name, id |
| broker_config | node ("" = all), configs (all of them) |
| producer_ids | next: first id of no block yet |
| users | set: SCRAM credentials, removed: names with mechanisms |
| acls | added, removed: each a list of the fields of `Acl` |
| quotas | changes: each a list of an entity (types with names), a key, and a value, or null for none |
| secret | value: random bytes that no client knows |
| stop | incarnation: which start was stopped in order, nothing has changed since |

The leader epoch of a partition is the number of starts since its topic was made.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from oncelog.cluster.internal_topics import as_for_controllers
from oncelog.cluster.journal import JournalDamaged, JournalEntry, read_journal
from oncelog.cluster.metadata_draft import MetadataDraft, config_records, found_topic
from oncelog.cluster.node_facts import NodeFacts
from oncelog.controller.acl_changes import acl_record
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.replay import Replay
from oncelog.controller.scram_changes import scram_record
from oncelog.core.config_resources import ResourceType
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, uuid_from_text
from oncelog.protocol.messages.cluster_metadata import ClientQuotaRecord, ProducerIdsRecord, QuotaEntity
from oncelog.protocol.schema import Message
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ScramCredential, ScramMechanism, ScramUser


def draft_of_journal(
    path: Path, *, stopped_incarnation: int | None, was_clean: bool, boot_id: str | None, new_uuid: Callable[[], UUID]
) -> MetadataDraft:
    """Raises JournalDamaged.

    `stopped_incarnation` is what the folder says was the last to be stopped in order, None if it does not. A journal
    shows that it has lost its end by a bad last line, or because it does not end with that stop, or by epochs in the
    logs that it has not come to (see `adoption`).
    """
    journal = JournalState.read(path)
    if journal.is_empty:
        return MetadataDraft(None, NodeFacts())
    went_down = not was_clean and (boot_id is None or boot_id != journal.boot_id)
    draft = MetadataDraft(journal.image(new_uuid), journal.facts, went_down=went_down)
    draft.has_changed = True
    if journal.torn_bytes:
        draft.mark_cut(f"its last {journal.torn_bytes} bytes are torn or damaged")
    elif stopped_incarnation is not None and journal.lacks_stop_of(stopped_incarnation):
        draft.mark_cut(f"the stop of start {stopped_incarnation} is not in it")
    return draft


@dataclass(slots=True)
class _Topic:
    topic_id: UUID
    partition_count: int
    configs: dict[str, str]
    born: int
    """The incarnation of the broker that created the topic."""


class JournalState:
    """What all entries of a journal amount to."""

    def __init__(self) -> None:
        self.is_empty = True
        self.torn_bytes = 0
        """How many bytes of a torn or damaged last line follow the entries."""
        self.boot_id: str | None = None
        self.secret: bytes | None = None
        self._incarnation = -1
        self._doubtful_incarnation = -1
        self._stopped_incarnation: int | None = None
        self._topics: dict[str, _Topic] = {}
        self._broker_configs: dict[str, dict[str, str]] = {}
        self._users: dict[ScramUser, ScramCredential] = {}
        self._acls: dict[Acl, None] = {}
        self._quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
        self._next_producer_id = 0

    @classmethod
    def read(cls, path: Path) -> JournalState:
        """Raises JournalDamaged."""
        found, state = read_journal(path), cls()
        for entry in found.entries:
            state._apply(entry, path)
        state.is_empty, state.torn_bytes = not found.entries, found.torn_bytes
        return state

    def lacks_stop_of(self, incarnation: int) -> bool:
        return self._incarnation <= incarnation != self._stopped_incarnation

    @property
    def facts(self) -> NodeFacts:
        topic = self._topics.get(TRANSACTION_STATE_TOPIC)
        is_doubtful = topic is not None and self._doubtful_incarnation >= 0
        doubtful_epoch = max(0, self._doubtful_incarnation - topic.born) if topic is not None and is_doubtful else 0
        return NodeFacts(self.boot_id, doubtful_epoch, secret=self.secret)

    def _apply(self, entry: JournalEntry, path: Path) -> None:
        self._stopped_incarnation = None
        match entry["kind"]:
            case "stop":
                self._stopped_incarnation = entry["incarnation"]
            case "start":
                self._incarnation = entry["incarnation"]
                self.boot_id = entry.get("boot")
                self._doubtful_incarnation = entry.get("doubtful", -1)
            case "topic":
                topic = _Topic(uuid_from_text(entry["id"]), entry["partitions"], dict(entry["configs"]), entry["born"])
                self._topics[entry["name"]] = topic
            case "partitions":
                self._topics[entry["name"]].partition_count = entry["count"]
            case "topic_config":
                self._topics[entry["name"]].configs = dict(entry["configs"])
            case "delete":
                del self._topics[entry["name"]]
            case "broker_config":
                self._broker_configs[entry["node"]] = dict(entry["configs"])
            case "producer_ids":
                self._next_producer_id = entry["next"]
            case "users":
                for name, mechanism in entry["removed"]:
                    self._users.pop(ScramUser(name, ScramMechanism(mechanism)), None)
                self._users |= dict(map(_user, entry["set"]))
            case "quotas":
                self._apply_quotas(entry)
            case "acls":
                for removed in map(_acl, entry["removed"]):
                    self._acls.pop(removed, None)
                self._acls |= dict.fromkeys(map(_acl, entry["added"]))
            case "secret":
                self.secret = base64.b64decode(entry["value"])
            case unknown:
                raise JournalDamaged(
                    f"{path} has an entry of kind {unknown!r}, which this version does not know: a newer "
                    "Oncelog has used the folder. Use that version, or restore the folder from a copy of before"
                )

    def _apply_quotas(self, entry: JournalEntry) -> None:
        for parts, key, rate in entry["changes"]:
            rates = self._quotas.setdefault(tuple((kind, name) for kind, name in parts), {})
            if rate is None:
                rates.pop(key, None)
            else:
                rates[key] = rate

    def image(self, new_uuid: Callable[[], UUID]) -> Image:
        """The image that the entries amount to, with the leader epochs of the last start."""
        replay = Replay(EMPTY_IMAGE)
        for record in self._records(new_uuid):
            replay.apply(record)
        return replay.image()

    def _records(self, new_uuid: Callable[[], UUID]) -> Iterator[Message]:
        for name, topic in self._topics.items():
            configs = as_for_controllers(topic.configs) if name in INTERNAL_TOPICS else topic.configs
            epoch = self._incarnation - topic.born
            yield from found_topic(name, topic.topic_id, topic.partition_count, epoch, configs)
        for node, configs in self._broker_configs.items():
            yield from config_records(ResourceType.BROKER, node, configs)
        for user, credential in self._users.items():
            yield scram_record(user, credential)
        for acl in self._acls:
            yield acl_record(acl, new_uuid())
        for entity, rates in self._quotas.items():
            parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
            for key, rate in rates.items():
                yield ClientQuotaRecord(entity=parts, key=key, value=rate)
        if self._next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self._next_producer_id)


def _user(stored: dict[str, Any]) -> tuple[ScramUser, ScramCredential]:
    salt, stored_key, server_key = (base64.b64decode(stored[field]) for field in ("salt", "stored_key", "server_key"))
    user = ScramUser(stored["name"], ScramMechanism(stored["mechanism"]))
    return user, ScramCredential(salt, stored_key, server_key, stored["iterations"])


def _acl(fields: list[Any]) -> Acl:
    resource, name, pattern, principal, host, operation, permission = fields
    return Acl(
        Resource(resource), name, Pattern(pattern), principal, host, Operation(operation), Permission(permission)
    )


def without_secrets(entry: JournalEntry) -> JournalEntry:
    """An entry, or what stands in its place (see `node_facts`), to be shown to people."""
    if entry.get("kind") == "secret":
        return {"kind": "secret"}
    entry = {field: value for field, value in entry.items() if field != "secret"}
    if entry.get("kind") != "users":
        return entry
    shown = ("name", "mechanism", "iterations")
    return {**entry, "set": [{field: user[field] for field in shown} for user in entry["set"]]}
