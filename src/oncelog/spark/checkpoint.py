"""Whether a query will find its checkpoint again. Pure.

Without a checkpointLocation Spark makes up a folder: a temporary one, or, where the setting
spark.sql.streaming.checkpointLocation names a place for all queries, one there with a random name. A query that is
started again gets another, without its state and without the plan of its last batch.
"""

from __future__ import annotations

import posixpath
import re

DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"
_RANDOM = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_made_up(checkpoint: str, *, default_location: str | None, query_name: str | None) -> bool:
    """Whether Spark made the folder up for this one start of the query."""
    parent, _, folder = checkpoint.rstrip("/").rpartition("/")
    if re.fullmatch(f"temporary-{_RANDOM}", folder):
        return True
    if not default_location or query_name is not None or not re.fullmatch(_RANDOM, folder):
        return False
    # Spark shows a path made absolute, without dots and doubled slashes.
    path = re.sub("^[a-z0-9]+:", "", default_location).strip("/")
    return parent.endswith(posixpath.normpath(f"/{path}").rstrip("/"))
