"""Changes settings, users and ACLs in the folder of a broker that is stopped, if one of them keeps its operator out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from oncelog.cluster.metadata import MetadataStore
from oncelog.cluster.metadata_entries import ScramUser, acls_entry, broker_config_entry, topic_config_entry, users_entry
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.cluster.stopped_node import StoppedNode, open_node
from oncelog.controller.topic_rules import check_configs
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import ConfigError
from oncelog.core.config_resources import ConfigSource
from oncelog.core.ids import NodeId
from oncelog.core.topic_settings import dynamic_settings
from oncelog.core.worker import InlineWorker
from oncelog.security.acl import Acl
from oncelog.security.scram import ScramCredential
from oncelog.storage.clean_shutdown import write_clean_stop
from oncelog.storage.folder_lock import FolderInUseError, FolderLock
from oncelog.storage.log_dir import LogDirError
from oncelog.storage.meta_properties import MetaPropertiesError, ensure_meta_properties, read_meta_properties

ALL_NODES = ""


class StoppedBroker:
    """Made by `open_folder`. `kind` is "topic" or "broker", `name` a topic or the broker's number."""

    def __init__(self, metadata: MetadataStore, node_id: int) -> None:
        self._metadata = metadata
        self._node = str(node_id)

    def settings(self, kind: str, name: str) -> dict[ConfigSource, dict[str, str]]:
        """The settings that were changed, by their source."""
        if kind == "topic":
            return {ConfigSource.TOPIC: self._topic_configs(name)}
        self._check_node(name)
        stored = self._metadata.broker_configs
        return {
            ConfigSource.DYNAMIC_BROKER: dict(stored.get(self._node, {})),
            ConfigSource.DYNAMIC_DEFAULT_BROKER: dict(stored.get(ALL_NODES, {})),
        }

    def change(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        source, configs = next(iter(self.settings(kind, name).items()))
        self._store(source, name, {**configs, **settings})

    def remove(self, kind: str, name: str, names: tuple[str, ...]) -> None:
        """Remove settings. Those of a broker are also removed where they are set for all brokers."""
        found = self.settings(kind, name)
        absent = set(names).difference(*found.values())
        if absent:
            raise ConfigError(f"{', '.join(sorted(absent))}: not set for {kind} {name}")
        for source, configs in found.items():
            left = {key: value for key, value in configs.items() if key not in names}
            if left != configs:
                self._store(source, name, left)

    @property
    def users(self) -> Mapping[ScramUser, ScramCredential]:
        return self._metadata.users

    def change_users(self, given: Mapping[ScramUser, ScramCredential], removed: Iterable[ScramUser] = ()) -> None:
        with self._metadata.at_rest():
            self._metadata.commit(users_entry(given, removed))

    @property
    def acls(self) -> Collection[Acl]:
        return self._metadata.acls.keys()

    def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl] = ()) -> None:
        with self._metadata.at_rest():
            self._metadata.commit(acls_entry(added, removed))

    def _store(self, source: ConfigSource, name: str, configs: Mapping[str, str]) -> None:
        with self._metadata.at_rest():
            if source is ConfigSource.TOPIC:
                self._metadata.commit(topic_config_entry(name, check_configs(configs)))
            else:
                dynamic_settings(BROKER_CONFIG, configs)
                node = self._node if source is ConfigSource.DYNAMIC_BROKER else ALL_NODES
                self._metadata.commit(broker_config_entry(node, configs))

    def _topic_configs(self, name: str) -> dict[str, str]:
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise ConfigError(f"there is no topic {name} in this folder")
        return dict(topic.configs)

    def _check_node(self, name: str) -> None:
        if name != self._node:
            raise ConfigError(f"this is the folder of broker {self._node}, not of {name}")


def is_unused(folder: Path) -> bool:
    """Whether a broker would find nothing there."""
    return not folder.exists() or not any(entry.name != "lost+found" for entry in folder.iterdir())


def prepare_folder(folder: Path, node_id: int) -> None:
    """Makes the folder of a broker that has never run, as if it had and was stopped in order. Raises LogDirError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except (FolderInUseError, OSError) as error:
        raise LogDirError(f"{folder} cannot be used as a data folder: {error}") from error
    metadata = MetadataStore(folder, NodeId(node_id), InlineWorker())
    try:
        ensure_meta_properties(folder, cluster_id=None, node_id=node_id)
        metadata.open()
        metadata.finish_adoption()
        metadata.note_stop()
        write_clean_stop(folder, metadata.incarnation)
    finally:
        metadata.close()
        lock.release()


@contextmanager
def open_folder(folder: Path) -> Iterator[StoppedBroker | StoppedNode]:
    """Raises LogDirError when a broker runs on it, or when it is none that a broker has used."""
    if not (folder / JOURNAL_FILE).is_file():
        raise LogDirError(f"{folder} has no {JOURNAL_FILE}: not the data folder of a broker of Oncelog")
    try:
        lock = FolderLock(folder)
    except FolderInUseError as error:
        raise LogDirError(str(error)) from error
    try:
        meta = read_meta_properties(folder)
        if meta is None:
            raise LogDirError(f"{folder} has no meta.properties: not the data folder of a broker")
        facts = NodeFacts.read(folder / JOURNAL_FILE)
        if facts is not None:
            yield open_node(folder, meta.node_id, facts)
            return
        metadata = MetadataStore(folder, NodeId(meta.node_id), InlineWorker())
        try:
            if metadata.load():
                raise LogDirError(f"{folder / JOURNAL_FILE} has a torn end, which the next start of the broker repairs")
            yield StoppedBroker(metadata, meta.node_id)
        finally:
            metadata.close()
    except MetaPropertiesError as error:
        raise LogDirError(str(error)) from error
    finally:
        lock.release()
