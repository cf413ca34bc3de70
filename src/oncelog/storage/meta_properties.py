"""The `meta.properties` of a data folder: which cluster and which node it belongs to. A Java properties file.

    version=1
    cluster.id=4L6g3nShT-eMCtK--X86sw
    node.id=1
    directory.id=J8aAPcfLQt2bqs1JT_rMgQ

Version 0, of Kafka with ZooKeeper, has `broker.id` and may lack the cluster. Lines that start with # are comments.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from oncelog.core.config import ConfigError
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import uuid_from_text, uuid_to_text
from oncelog.core.properties import parse_properties
from oncelog.storage.atomic_file import replace_file

FILE_NAME: Final = "meta.properties"


class MetaPropertiesError(Exception):
    """The folder belongs to another cluster or node, or the file makes no sense. The text says what to do."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: uuid.UUID | None = None

    def encode(self) -> bytes:
        lines = ["version=1", f"cluster.id={self.cluster_id}", f"node.id={self.node_id}"]
        if self.directory_id is not None:
            lines.append(f"directory.id={uuid_to_text(self.directory_id)}")
        return ("\n".join(lines) + "\n").encode()


def read_meta_properties(folder: Path) -> MetaProperties | None:
    path = folder / FILE_NAME
    try:
        fields = parse_properties(path.read_text())
    except FileNotFoundError:
        return None
    except (ConfigError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    if fields.get("version") not in ("0", "1"):
        found = (
            f"version {fields['version']} is unknown, expected 0 or 1" if "version" in fields else "it has no version"
        )
        raise _unreadable(path, found)
    try:
        directory_id = uuid_from_text(fields["directory.id"]) if "directory.id" in fields else None
        return MetaProperties(fields["cluster.id"], int(fields.get("node.id") or fields["broker.id"]), directory_id)
    except KeyError as error:
        raise _unreadable(path, f"{error.args[0]} is missing") from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, problem: str) -> MetaPropertiesError:
    return MetaPropertiesError(
        f"{path} is damaged: {problem}. Restore it from a copy, or write the lines version=1, cluster.id=... and "
        "node.id=... into it, with the cluster.id of the other nodes. A node that is alone makes a new one, with "
        "another cluster.id, if you remove it"
    )


def ensure_meta_properties(folder: Path, *, cluster_id: str | None, node_id: int) -> MetaProperties:
    """Read and compare, or write at the first start. A folder of another cluster or node is refused.

    Without a `cluster_id` the folder's is taken, or a new one is made up.
    """
    path = folder / FILE_NAME
    found = read_meta_properties(folder)
    if found is not None:
        if cluster_id is not None and found.cluster_id != cluster_id:
            raise MetaPropertiesError(
                f"{path} says that the folder belongs to cluster {found.cluster_id}, but cluster.id is {cluster_id}: "
                "set the right log.dirs, or remove cluster.id to go on with what is in the folder"
            )
        if found.node_id != node_id:
            raise MetaPropertiesError(
                f"{path} says that the folder belongs to node {found.node_id}, but node.id is {node_id}: "
                "set the right log.dirs or the right node.id"
            )
        cluster_id = found.cluster_id
    if found is None or found.directory_id is None:
        found = MetaProperties(cluster_id or uuid_to_text(uuid.uuid4()), node_id, uuid.uuid4())
        replace_file(path, found.encode())
    return found
