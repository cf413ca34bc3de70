"""Whether a table has a micro-batch already: what it says of the last batch of the query. Pure.

Spark runs a batch again only if it is the last one it has planned, and then by the same plan. A table whose last batch
is another one was not left by this checkpoint: one of the two is an older copy. Nor is a batch that is there run again,
for its state alone, when a topic that it joined as a table has changed.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.resume import CannotResume, NewCheckpoint, check_tables_read


class LastBatch(NamedTuple):
    """The last batch of a query that is in a table."""

    number: int = -1
    """-1 for none."""
    plan: int | None = None
    """When Spark planned it; None where an earlier version wrote it."""
    tables: str | int | None = None
    """What it read of topics as tables (see `table_versions`), or the number of that text; None where state does not
    depend on it."""


def is_written(batch: MicroBatch, last: LastBatch, table: str, policy: NewCheckpoint, tables: str | None) -> bool:
    """Raises CannotResume when going on would lose or repeat input, or part state from output.

    `tables` is what the batch reads now.
    """
    if batch.batch_id == last.number and last.plan in (batch.planned_ms, None):
        if tables is not None:
            check_tables_read(batch, last.tables, tables)
        return True
    if batch.batch_id <= last.number:
        raise CannotResume(_old_checkpoint(batch, last, table))
    if batch.batch_id > last.number + 1 and policy is NewCheckpoint.REFUSE:
        raise CannotResume(_old_table(batch, last, table))
    return False


def _old_checkpoint(batch: MicroBatch, last: LastBatch, table: str) -> str:
    return (
        f"checkpoint {batch.checkpoint} is about to run batch {batch.batch_id}, but {table} has batch {last.number} of "
        "this very query, by another plan: the checkpoint is an older copy, and what the batch reads now is not what "
        "the table has. Restore the newest checkpoint, or start a new one behind what was written, with "
        "startingOffsets and on_new_checkpoint='reprocess'"
    )


def _old_table(batch: MicroBatch, last: LastBatch, table: str) -> str:
    has = f"has batches up to {last.number} of this query" if last.number >= 0 else "has no batch of this query"
    return (
        f"{table} {has}, and checkpoint {batch.checkpoint} goes on with batch {batch.batch_id}: the table is an older "
        "copy, or was made again, and the batches between are not in it. Restore the table, or pass "
        "on_new_checkpoint='reprocess' to go on without them"
    )
