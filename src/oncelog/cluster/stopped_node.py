"""Changes settings, users and ACLs in the folder of a broker that is stopped, if one of them keeps its operator out.

What is there is read from the node's metadata log, see `own_controller`. A change is appended under an epoch of its
own, as its controller would do it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from oncelog.cluster.committed_log import Snapshot
from oncelog.cluster.file_metadata_log import OWN_ADDRESS, FileMetadataLog
from oncelog.cluster.image_security import acls_of, known_acls, scram_users
from oncelog.cluster.journal_entries import JournalState
from oncelog.cluster.kraft_metadata import load_image
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.cluster.quorum_log import TOPIC, Leader
from oncelog.controller.acl_changes import acl_record
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, ConfigResource, Image
from oncelog.controller.image_records import versioned
from oncelog.controller.replay import Replay
from oncelog.controller.scram_changes import scram_record
from oncelog.controller.topic_rules import check_configs
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.core.config_resources import ConfigSource, ResourceType
from oncelog.core.errors import KafkaError
from oncelog.core.topic_settings import dynamic_settings
from oncelog.core.worker import InlineWorker
from oncelog.protocol.messages.cluster_metadata import (
    ConfigRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
)
from oncelog.protocol.schema import Message
from oncelog.security.acl import Acl
from oncelog.security.scram import ScramCredential, ScramUser
from oncelog.storage.clean_shutdown import NO_BROKER_EPOCH, write_clean_stop
from oncelog.storage.folder_lock import FolderInUseError, FolderLock
from oncelog.storage.log_dir import LogDirError, take_folder
from oncelog.storage.meta_properties import (
    MetaProperties,
    MetaPropertiesError,
    read_meta_properties,
)

ALL_NODES: Final = ""


class StoppedNode:
    """Made by `open_folder`. `kind` is "topic" or "broker", `name` a topic or the broker's number."""

    def __init__(self, folder: Path, meta: MetaProperties, image: Image, facts: NodeFacts) -> None:
        self.meta = meta
        self._folder = folder
        self._node_id = meta.node_id
        self._image = image
        self._facts = facts

    @property
    def image(self) -> Image:
        return self._image

    def settings(self, kind: str, name: str) -> dict[ConfigSource, dict[str, str]]:
        """The settings that were changed, by their source."""
        if kind == "topic":
            if name not in self._image.topic_ids:
                raise ConfigError(f"there is no topic {name} in this folder")
            return {ConfigSource.TOPIC: dict(self._image.topic_settings(name))}
        if name != str(self._node_id):
            raise ConfigError(f"this is the folder of broker {self._node_id}, not of {name}")
        return {
            ConfigSource.DYNAMIC_BROKER: self._of_broker(name),
            ConfigSource.DYNAMIC_DEFAULT_BROKER: self._of_broker(ALL_NODES),
        }

    def _of_broker(self, name: str) -> dict[str, str]:
        return dict(self._image.settings.get(ConfigResource(ResourceType.BROKER, name), {}))

    def change(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        source, configs = next(iter(self.settings(kind, name).items()))
        changed = {**configs, **settings}
        if source is ConfigSource.TOPIC:
            check_configs(changed)
        else:
            dynamic_settings(BROKER_CONFIG, changed)
        self._append([_setting(source, name, key, value) for key, value in settings.items()])

    def remove(self, kind: str, name: str, names: tuple[str, ...]) -> None:
        """Remove settings. Those of a broker are also removed where they are set for all brokers."""
        found = self.settings(kind, name)
        absent = set(names).difference(*found.values())
        if absent:
            raise ConfigError(f"{', '.join(sorted(absent))}: not set for {kind} {name}")
        self._append(
            [_setting(source, name, key, None) for source, configs in found.items() for key in names if key in configs]
        )

    @property
    def users(self) -> Mapping[ScramUser, ScramCredential]:
        return scram_users(self._image)

    def change_users(self, given: Mapping[ScramUser, ScramCredential], removed: Iterable[ScramUser] = ()) -> None:
        records: list[Message] = [
            RemoveUserScramCredentialRecord(name=user.name, mechanism=user.mechanism) for user in removed
        ]
        records += [scram_record(user, credential) for user, credential in given.items()]
        self._append(records)

    @property
    def acls(self) -> Collection[Acl]:
        return acls_of(self._image)

    def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl] = ()) -> None:
        gone, known = set(removed), known_acls(self._image)
        records: list[Message] = [
            RemoveAccessControlEntryRecord(id=acl_id) for acl_id, acl in known.items() if acl in gone
        ]
        present = set(known.values())
        records += [acl_record(acl, uuid.uuid4()) for acl in dict.fromkeys(added) if acl not in present]
        self._append(records)

    def _append(self, records: list[Message]) -> None:
        """Raises LogDirError. The clean stop before it stays one."""
        if not records:
            return
        log = open_log(self._folder, self._node_id)
        try:
            log.start(_Nobody())
            log.campaign()
            level = self._image.metadata_version
            result = log.append([versioned(record, level) for record in records]).value
            if isinstance(result, KafkaError):
                raise result
            self._facts = self._facts._replace(end_offset=log.committed.end_offset)
            self._facts.write(self._folder / JOURNAL_FILE)
        except (KafkaError, InvalidMetadata, OSError) as error:
            raise LogDirError(f"{self._folder}: the change could not be written: {error}") from error
        finally:
            log.close()
        replay = Replay(self._image)
        for record in records:
            replay.apply(record)
        self._image = replay.image()


def _setting(source: ConfigSource, name: str, key: str, value: str | None) -> ConfigRecord:
    kind = ResourceType.TOPIC if source is ConfigSource.TOPIC else ResourceType.BROKER
    name = ALL_NODES if source is ConfigSource.DYNAMIC_DEFAULT_BROKER else name
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


class _Nobody:
    """A `metadata_log.Follower`: the image is known."""

    def on_snapshot(self, snapshot: Snapshot) -> None: ...

    def on_committed(self, batch: bytes) -> None: ...

    def on_leader(self, leader: Leader | None) -> None: ...


class _AtOnce:
    """A `clock.Scheduler` without a loop: nothing else is to be done meanwhile."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> _AtOnce:
        time.sleep(delay_ms / 1000)
        callback()
        return self

    def cancel(self) -> None:
        """There is nothing to cancel: the callback has run already."""


def open_log(folder: Path, node_id: int) -> FileMetadataLog:
    return FileMetadataLog(folder, node_id=node_id, address=OWN_ADDRESS, scheduler=_AtOnce(), worker=InlineWorker())


def is_unused(folder: Path) -> bool:
    """Whether a broker would find nothing there."""
    return not folder.exists() or not any(entry.name != "lost+found" for entry in folder.iterdir())


def prepare_folder(folder: Path, node_id: int) -> None:
    """Makes the folder of a broker that has never run, as if it had and was stopped in order. Raises LogDirError."""
    lock = take_folder(folder, cluster_id=None, node_id=node_id).lock
    try:
        NodeFacts().write(folder / JOURNAL_FILE)
        write_clean_stop(folder, NO_BROKER_EPOCH)
    finally:
        lock.release()


@contextmanager
def open_folder(folder: Path) -> Iterator[StoppedNode]:
    """Raises LogDirError when a broker runs on it, or when no broker has ever used it."""
    path = folder / JOURNAL_FILE
    if not path.is_file():
        raise LogDirError(
            f"{folder} has no {JOURNAL_FILE}: not the data folder of a node of its own; in a cluster settings, "
            "users and ACLs are with the controllers"
        )
    try:
        lock = FolderLock(folder)
    except FolderInUseError as error:
        raise LogDirError(str(error)) from error
    try:
        meta = read_meta_properties(folder)
        if meta is None:
            raise LogDirError(f"{folder} has no meta.properties: not the data folder of a broker")
        facts = NodeFacts.read(path)
        if facts is None:
            JournalState.read(path)  # raises what its start would
            raise LogDirError(f"{path} is of an earlier version: start the broker once, which takes the folder over")
        yield _node(folder, meta, facts)
    except MetaPropertiesError as error:
        raise LogDirError(str(error)) from error
    finally:
        lock.release()


def _node(folder: Path, meta: MetaProperties, facts: NodeFacts) -> StoppedNode:
    if not (folder / f"{TOPIC}-0").is_dir():
        return StoppedNode(folder, meta, EMPTY_IMAGE, facts)
    loaded = load_image(folder)
    if not loaded.is_complete or loaded.is_torn or loaded.end_offset < facts.end_offset:
        raise LogDirError(
            f"the metadata log in {folder} has lost its end, which the next start of the broker makes up for"
        )
    return StoppedNode(folder, meta, loaded.image, facts)
