"""What a group was when a query was about to commit for the first time: marks beside Spark's files in the checkpoint.

The notes in a group tell which batches of a query are done, and every batch but the first is preceded by one (batches
that had no partition to read count for nothing). A query that has none may have lost it: what another query of the
group commits between the last look of this one and its commit lies over the notes of both. So the first batch leaves a
mark before it is committed, made of what the group then has where the batch goes to. If it is run again, and there is
no note of it, then the group is either as the mark says, and the batch was not committed, since every commit has a note
of its own; or it is not, and nothing tells.

A mark is an empty file with the mark as its name: it is there or not, whatever dies meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from oncelog.client import OffsetAndMetadata
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "oncelog-first-commit"


def mark_of(
    group: str, committed: Mapping[TopicPartition, OffsetAndMetadata], places: Collection[TopicPartition]
) -> str:
    """`places` are what the batch commits offsets for."""
    found = [
        (*place, committed[place].offset, committed[place].metadata) for place in sorted(places) if place in committed
    ]
    return hashlib.sha256(json.dumps([group, found]).encode()).hexdigest()[:32]


def marks_left(spark: SparkSession, checkpoint: str) -> frozenset[str]:
    folder, files = _folder(spark, checkpoint)
    if not files.exists(folder):
        return frozenset()
    return frozenset(str(status.getPath().getName()) for status in files.listStatus(folder))


def leave_mark(spark: SparkSession, checkpoint: str, mark: str) -> None:
    folder, files = _folder(spark, checkpoint)
    files.create(_path(spark, f"{folder}/{mark}"), True).close()


def _folder(spark: SparkSession, checkpoint: str) -> tuple[Any, Any]:
    """And the file system it is on."""
    folder = _path(spark, f"{checkpoint}/{FOLDER}")
    return folder, folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def _path(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.Path(path)
