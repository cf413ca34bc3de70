"""The entries of the metadata journal (see `cluster.metadata`): their kinds and fields, and what they are about.

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
| users | set: SCRAM credentials, removed: names with mechanisms; see `users_entry` |
| acls | added, removed: each a list of the fields of `Acl` |
| quotas | changes: each a list of an entity (types with names), a key, and a value or null; see `quotas_entry` |
| secret | value: random bytes that no client knows |
| stop | incarnation: which start was stopped in order, nothing has changed since |
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oncelog.cluster.journal import JournalEntry
from oncelog.core.ids import uuid_from_text, uuid_to_text
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.security.quotas import Entity
from oncelog.security.scram import ScramCredential, ScramMechanism


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)
    born: int = 0
    """The incarnation of the broker that created the topic."""


class ScramUser(NamedTuple):
    name: str
    mechanism: ScramMechanism


def topic_entry(topic: Topic) -> JournalEntry:
    return {
        "kind": "topic",
        "name": topic.name,
        "id": uuid_to_text(topic.topic_id),
        "partitions": topic.partition_count,
        "configs": topic.configs,
        "born": topic.born,
    }


def topic_of(entry: JournalEntry) -> Topic:
    topic_id = uuid_from_text(entry["id"])
    return Topic(entry["name"], topic_id, entry["partitions"], dict(entry["configs"]), entry["born"])


def partitions_entry(name: str, count: int) -> JournalEntry:
    return {"kind": "partitions", "name": name, "count": count}


def topic_config_entry(name: str, configs: Mapping[str, str]) -> JournalEntry:
    return {"kind": "topic_config", "name": name, "configs": dict(configs)}


def broker_config_entry(node: str, configs: Mapping[str, str]) -> JournalEntry:
    return {"kind": "broker_config", "node": node, "configs": dict(configs)}


def delete_entry(topic: Topic) -> JournalEntry:
    return {"kind": "delete", "name": topic.name, "id": uuid_to_text(topic.topic_id)}


def producer_ids_entry(following: int) -> JournalEntry:
    return {"kind": "producer_ids", "next": following}


def users_entry(given: Mapping[ScramUser, ScramCredential], removed: Iterable[ScramUser] = ()) -> JournalEntry:
    stored = [
        {
            "name": user.name,
            "mechanism": int(user.mechanism),
            "salt": base64.b64encode(credential.salt).decode(),
            "stored_key": base64.b64encode(credential.stored_key).decode(),
            "server_key": base64.b64encode(credential.server_key).decode(),
            "iterations": credential.iterations,
        }
        for user, credential in given.items()
    ]
    return {"kind": "users", "set": stored, "removed": [[user.name, int(user.mechanism)] for user in removed]}


def removed_users(entry: JournalEntry) -> list[ScramUser]:
    return [ScramUser(name, ScramMechanism(mechanism)) for name, mechanism in entry["removed"]]


def given_users(entry: JournalEntry) -> dict[ScramUser, ScramCredential]:
    users = {}
    for stored in entry["set"]:
        salt, *keys = (base64.b64decode(stored[field]) for field in ("salt", "stored_key", "server_key"))
        user = ScramUser(stored["name"], ScramMechanism(stored["mechanism"]))
        users[user] = ScramCredential(salt, keys[0], keys[1], stored["iterations"])
    return users


def acls_entry(added: Iterable[Acl], removed: Iterable[Acl] = ()) -> JournalEntry:
    return {"kind": "acls", "added": [list(acl) for acl in added], "removed": [list(acl) for acl in removed]}


def quotas_entry(changes: Iterable[tuple[Entity, str, float | None]]) -> JournalEntry:
    """As Kafka's ClientQuotaRecord: a value of None removes the quota."""
    return {"kind": "quotas", "changes": [[[list(part) for part in entity], *rest] for entity, *rest in changes]}


def quota_changes(entry: JournalEntry) -> list[tuple[Entity, str, float | None]]:
    return [(tuple((kind, name) for kind, name in parts), key, value) for parts, key, value in entry["changes"]]


def secret_entry(secret: bytes) -> JournalEntry:
    return {"kind": "secret", "value": base64.b64encode(secret).decode()}


def without_secrets(entry: JournalEntry) -> JournalEntry:
    """The entry without the secrets, to be shown to people."""
    if entry.get("kind") == "secret":
        return {"kind": "secret"}
    entry = {field: value for field, value in entry.items() if field != "secret"}
    if entry.get("kind") != "users":
        return entry
    shown = ("name", "mechanism", "iterations")
    return {**entry, "set": [{field: user[field] for field in shown} for user in entry["set"]]}


def acl_of(fields: list[Any]) -> Acl:
    resource, name, pattern, principal, host, operation, permission = fields
    return Acl(
        Resource(resource), name, Pattern(pattern), principal, host, Operation(operation), Permission(permission)
    )
