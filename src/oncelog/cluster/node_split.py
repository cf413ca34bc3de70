"""A node of its own becomes a cluster of a controller and a broker, while it is stopped.

Its metadata goes into the folder of a controller (`process.roles=controller`), as a snapshot with which that one
begins. What is left is the folder of a broker (`process.roles=broker`) with the same `node.id`. The folder of the node
is as it was until the other one is complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelog.cluster.cluster_config import METADATA_LEVEL
from oncelog.cluster.metadata_draft import MetadataDraft
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.cluster.stopped_broker import is_unused
from oncelog.cluster.stopped_node import open_log, open_node
from oncelog.controller.image import METADATA_VERSION
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, NodeId
from oncelog.storage import clean_shutdown
from oncelog.storage.atomic_file import sync_path
from oncelog.storage.deletions import unlink_all
from oncelog.storage.folder_lock import FolderInUseError, FolderLock
from oncelog.storage.log_dir import LogDirError, take_folder
from oncelog.storage.meta_properties import MetaProperties, MetaPropertiesError, read_meta_properties

if TYPE_CHECKING:
    from oncelog.controller.image import Image

LEVELS: Final = {METADATA_VERSION: METADATA_LEVEL, "transaction.version": 2}
"""Of a node with a journal, which has none."""


def split_node(folder: Path, controller_folder: Path, controller_id: int) -> MetaProperties:
    """Returns whose folder it is. Raises LogDirError if it is not one of a node of its own that was stopped in order,
    or the other one is not empty."""
    with _locked(folder):
        meta = _meta(folder)
        if controller_id == meta.node_id:
            raise LogDirError(f"node {meta.node_id} is the broker: the controller needs another node.id")
        if not is_unused(controller_folder):
            raise LogDirError(f"{controller_folder} is not empty: name a new folder for the controller")
        image = _image(folder, meta)
        try:
            _begin_controller(controller_folder, meta.cluster_id, controller_id, image)
        except (KafkaError, OSError) as error:
            raise LogDirError(f"{controller_folder} could not be made: {error}. {folder} is as it was") from error
        # With this the folder is one of a broker.
        (folder / JOURNAL_FILE).unlink()
        sync_path(folder)
        unlink_all([folder / f"{CLUSTER_METADATA_TOPIC}-0"])
    return meta


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        lock = FolderLock(folder)
    except FolderInUseError as error:
        raise LogDirError(str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _meta(folder: Path) -> MetaProperties:
    try:
        meta = read_meta_properties(folder)
    except MetaPropertiesError as error:
        raise LogDirError(str(error)) from error
    if meta is None or meta.directory_id is None or not (folder / JOURNAL_FILE).is_file():
        raise LogDirError(f"{folder} is not the data folder of a node of its own")
    if not clean_shutdown.has_clean_stop(folder):
        raise LogDirError(f"the node of {folder} was not stopped in order: start it, and stop it with SIGTERM")
    return meta


def _image(folder: Path, meta: MetaProperties) -> Image:
    facts = NodeFacts.read(folder / JOURNAL_FILE)
    if facts is not None:
        return open_node(folder, meta.node_id, facts).image
    draft = MetadataDraft(folder, NodeId(meta.node_id))
    try:
        draft.open(stopped_incarnation=clean_shutdown.read_broker_epoch(folder), was_clean=True)
        if draft.is_cut:
            raise LogDirError(f"the journal in {folder} has lost its end, which the next start makes up for")
        return draft.image(LEVELS, meta.directory_id or uuid.uuid4(), uuid.uuid4)
    finally:
        draft.close()


def _begin_controller(folder: Path, cluster_id: str, node_id: int, image: Image) -> None:
    taken = take_folder(folder, cluster_id=cluster_id, node_id=node_id)
    log = open_log(folder, node_id)
    try:
        # The controller that the node was itself is no more.
        log.begin_anew(replace(image, controllers={}))
    finally:
        log.close()
        taken.lock.release()
