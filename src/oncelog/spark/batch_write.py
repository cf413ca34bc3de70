"""A plain DataFrame written in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog.client import OffsetAndMetadata, TopicPartition
from oncelog.core.sink_note import METADATA_BYTES_MAX, Note
from oncelog.spark.identity import Identity
from oncelog.spark.sink_options import (
    SinkOptions,
    sink_options,
)
from oncelog.spark.source_options import OptionError
from oncelog.spark.spark_session import refuse_unsafe
from oncelog.spark.transactor import Transactor
from oncelog.spark.write_job import Written, run_write_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_batch(
    frame: DataFrame,
    *,
    bootstrap_servers: str,
    transactional_id: str,
    topic: str | None = None,
    run_id: str | None = None,
    dead_letter_topic: str | None = None,
    transaction_timeout_ms: int | None = None,
    batch_attempts: int | None = None,
    compression_type: str | None = None,
    max_request_size: int | None = None,
    kafka: Mapping[str, str] | None = None,
) -> Written | None:
    """Write all rows, or none of them: one transaction. Columns and settings are those of `write_stream`.

    With a `run_id` (a date, the name of a job's run) it is written once however often it is called with that id in
    succession: the id is committed with the rows, under the group of the transactional id. A call that finds it there
    writes nothing and returns None.

    Without one a call writes its rows once, but a second call writes them again. So a call that raised is not safe to
    repeat: it may have been the answer to its commit that was lost.
    """
    options = sink_options(
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        transaction_timeout_ms=transaction_timeout_ms,
        batch_attempts=batch_attempts,
        compression_type=compression_type,
        max_request_size=max_request_size,
        kafka=kafka,
    )
    if frame.isStreaming:
        raise OptionError("write_batch takes a plain DataFrame; a streaming one is for oncelog.spark.write_stream")
    if run_id is not None and options.batch_id_partition is None:
        raise OptionError("run_id is kept under the output topic: give the option topic")
    if run_id == "":
        raise OptionError("run_id is empty: give each run its own, or leave it out")
    if len(Note(run_id or "", 0, call=str(uuid.uuid4())).to_text()) > METADATA_BYTES_MAX:
        raise OptionError(f"run_id is too long: with its note it has more than {METADATA_BYTES_MAX} bytes")
    refuse_unsafe(frame.sparkSession)
    writing = _Call(frame, options, run_id)
    transactor = Transactor(options)
    try:
        return transactor.run(f"batch write {run_id or ''}".strip(), writing.attempt)
    finally:
        transactor.close()


class _Call:
    """One call of `write_batch`, in one or more attempts. Each sees in the committed offsets what the last did."""

    def __init__(self, frame: DataFrame, options: SinkOptions, run_id: str | None) -> None:
        self._frame = frame
        self._options = options
        self._run_id = run_id
        self._id = str(uuid.uuid4())
        self._written: Written | None = None

    def attempt(self, identity: Identity) -> Written | None:
        committed = identity.client.fetch_offsets(self._options.group_id)
        notes = [note for value in committed.values() if (note := Note.from_text(value.metadata)) is not None]
        if any(note.call == self._id for note in notes):
            return self._written
        last = self._last_run(committed)
        if self._run_id is not None and last == self._run_id:
            return None
        self._written = run_write_job(self._frame, self._options, identity.client)
        place = self._options.batch_id_partition or min(self._written.partitions, default=None)
        if place is None or (self._run_id is None and not self._written.records):
            # Nothing joined the transaction, and a coordinator refuses to commit what was never begun.
            identity.abandon()
            return self._written
        note = Note(last if self._run_id is None else self._run_id, 0, call=self._id)
        identity.client.commit_offsets(self._options.group_id, {place: OffsetAndMetadata(0, note.to_text())})
        identity.commit()
        return self._written

    def _last_run(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> str:
        """The run id that was committed last; calls without one leave it as it is."""
        found = (
            committed.get(self._options.batch_id_partition) if self._options.batch_id_partition is not None else None
        )
        note = Note.from_text(found.metadata) if found is not None else None
        return "" if note is None else note.query_id
