"""A plain DataFrame written in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.spark.identity import Identity
from oncelog.spark.resume import Note
from oncelog.spark.sink_options import BATCH_ATTEMPTS, MAX_REQUEST_SIZE, TRANSACTION_TIMEOUT_MS, sink_options
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
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    batch_attempts: int = BATCH_ATTEMPTS,
    compression_type: str = "none",
    max_request_size: int = MAX_REQUEST_SIZE,
    kafka: Mapping[str, str] | None = None,
) -> Written | None:
    """Write all rows, or none of them: one transaction. Columns and settings are those of `write_stream`.

    With a `run_id` (a date, the name of a job's run) it is written once however often it is called with that id in
    succession: the id is committed with the rows, under the group of the transactional id. A call that finds it there
    writes nothing and returns None.
    """
    options = sink_options(
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        topic=topic,
        group_id=None,
        dead_letter_topic=dead_letter_topic,
        transaction_timeout_ms=transaction_timeout_ms,
        batch_attempts=batch_attempts,
        compression_type=compression_type,
        max_request_size=max_request_size,
        on_new_checkpoint="refuse",
        kafka=kafka,
    )
    if frame.isStreaming:
        raise OptionError("write_batch takes a plain DataFrame; a streaming one is for oncelog.spark.write_stream")
    if run_id is not None and options.stand_in is None:
        raise OptionError("run_id is kept under the output topic: give the option topic")
    refuse_unsafe(frame.sparkSession)

    def attempt(identity: Identity, producer: ProducerIdAndEpoch) -> Written | None:
        if run_id is not None and _is_done(identity, run_id):
            return None
        written = run_write_job(
            frame,
            options,
            identity=producer,
            transaction_version=identity.client.transaction_version,
        )
        if run_id is not None and options.stand_in is not None:
            note = OffsetAndMetadata(0, Note(run_id, 0).to_text())
            identity.client.commit_offsets(options.group_id, {options.stand_in: note})
        if run_id is None and not written.records:
            # Nothing joined the transaction, and a coordinator refuses to commit what was never begun.
            identity.abandon()
        else:
            identity.commit()
        return written

    def _is_done(identity: Identity, wanted: str) -> bool:
        committed = identity.client.fetch_offsets(options.group_id)
        found = committed.get(options.stand_in) if options.stand_in is not None else None
        note = Note.from_text(found.metadata) if found is not None else None
        return note is not None and note.query_id == wanted

    transactor = Transactor(options)
    try:
        return transactor.run(f"batch write {run_id or ''}".strip(), attempt)
    finally:
        transactor.close()
