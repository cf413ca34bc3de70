"""The `partition.metadata` file of a log: which topic, by id, the folder belongs to.

    version: 0
    topic_id: fK9aF3nzQ0ybpZ2Wq0m3eA

There is no newline at the end. A topic that is deleted and created again has another id, so that a folder which was
left behind is not taken for the new topic's.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from oncelog.core.ids import uuid_from_text, uuid_to_text
from oncelog.storage.atomic_file import read_file, replace_file

FILE_NAME: Final = "partition.metadata"


class CorruptPartitionMetadataError(Exception):
    """The file does not name a topic id."""


def read_topic_id(folder: Path) -> uuid.UUID | None:
    """The topic id of the folder's file, or None if there is no file."""
    path = folder / FILE_NAME
    try:
        lines = read_file(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    fields = {key: value for key, separator, value in (line.partition(": ") for line in lines) if separator}
    try:
        if int(fields["version"]) != 0:
            raise CorruptPartitionMetadataError(f"{path}: version {fields['version']} is unknown, expected 0")
        return uuid_from_text(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        raise CorruptPartitionMetadataError(f"{path}: expected version and topic_id, found {lines}") from error


def write_topic_id(folder: Path, topic_id: uuid.UUID) -> None:
    """It is on disk when the caller has synced it."""
    content = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"
    replace_file(folder / FILE_NAME, content.encode(), durable=False)
