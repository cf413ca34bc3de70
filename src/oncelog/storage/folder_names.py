"""The names of the folders in a data folder.

<topic>-<partition>                 a log
<topic>-<partition>.<id>-delete     a deleted log, to be removed
<topic>-<partition>.<id>-stray      a log that belongs to no topic; `-future` is another mark, of Kafka's. Both are
                                    left alone
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from oncelog.core.ids import TopicPartition
from oncelog.core.named_tuple import NamedTuple

FOLDER_NAME_CHARS_MAX: Final = 255
DELETE_MARK: Final = "delete"
STRAY_MARK: Final = "stray"

_FOLDER: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)(\.[0-9a-f]{32}-(?P<mark>delete|stray|future))?"
)


class FolderName(NamedTuple):
    """`mark` is None for a log in use. The topic of a marked folder may be cut to the length of a file name."""

    partition: TopicPartition
    mark: str | None


def marked_name(partition: TopicPartition, mark: str) -> str:
    """Another one with every call."""
    end = f"-{partition.partition}.{uuid.uuid4().hex}-{mark}"
    return partition.topic[: FOLDER_NAME_CHARS_MAX - len(end)] + end


def parse_folder_name(name: str) -> FolderName | None:
    match = _FOLDER.fullmatch(name)
    return None if match is None else FolderName(TopicPartition(match["topic"], int(match["partition"])), match["mark"])
