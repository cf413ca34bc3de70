"""A node of its own becomes a cluster of a controller and a broker, while it is stopped.

Its metadata goes into the folder of a controller (`process.roles=controller`), as a snapshot with which that one
begins. What is left is the folder of a broker (`process.roles=broker`) with the same `node.id`. The folder of the node
is as it was until the other one is complete.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.cluster.stopped_node import is_unused, open_folder, open_log
from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC
from oncelog.storage import clean_shutdown
from oncelog.storage.atomic_file import sync_path
from oncelog.storage.deletions import unlink_all
from oncelog.storage.log_dir import LogDirError, take_folder

if TYPE_CHECKING:
    from oncelog.controller.image import Image
    from oncelog.storage.meta_properties import MetaProperties


def split_node(folder: Path, controller_folder: Path, controller_id: int) -> MetaProperties:
    """Returns whose folder it is. Raises LogDirError if it is not one of a node of its own that was stopped in order,
    or the other one is not empty."""
    if not (folder / JOURNAL_FILE).is_file():
        raise LogDirError(f"{folder} is not the data folder of a node of its own")
    with open_folder(folder) as node:
        if not clean_shutdown.has_clean_stop(folder):
            raise LogDirError(f"the node of {folder} was not stopped in order: start it, and stop it with SIGTERM")
        if controller_id == node.meta.node_id:
            raise LogDirError(f"node {controller_id} is the broker: the controller needs another node.id")
        if not is_unused(controller_folder):
            raise LogDirError(f"{controller_folder} is not empty: name a new folder for the controller")
        try:
            _begin_controller(controller_folder, node.meta.cluster_id, controller_id, node.image)
        except (KafkaError, OSError) as error:
            raise LogDirError(f"{controller_folder} could not be made: {error}. {folder} is as it was") from error
        # With this the folder is one of a broker.
        (folder / JOURNAL_FILE).unlink()
        sync_path(folder)
        unlink_all([folder / f"{CLUSTER_METADATA_TOPIC}-0"])
    return node.meta


def _begin_controller(folder: Path, cluster_id: str, node_id: int, image: Image) -> None:
    taken = take_folder(folder, cluster_id=cluster_id, node_id=node_id)
    log = open_log(folder, node_id)
    try:
        # The controller that the node was itself is no more.
        log.begin_anew(replace(image, controllers={}))
    finally:
        log.close()
        taken.lock.release()
