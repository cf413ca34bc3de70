"""Runs something in a transaction until it is committed, skipped, or not worth another attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncelog.client import KafkaError, ProducerFenced
from oncelog.core.errors import ErrorCode
from oncelog.core.invariant import InvariantError
from oncelog.spark.identity import Identity
from oncelog.spark.resume import CannotResume
from oncelog.spark.routing import RowError
from oncelog.spark.sink_options import SinkOptions
from oncelog.spark.source_options import OptionError
from oncelog.spark.write_job import Written

logger = logging.getLogger(__name__)

Attempt = Callable[[Identity], Written | None]
"""Writes and commits in a fresh epoch of the identity given to it. None: there was nothing to do."""

ROW_ERROR_MARK = "oncelog.spark.routing.RowError: "


class DriverFenced(RuntimeError):
    """A newer driver owns the transactional id. This one must stop: its successor does the work."""


class Transactor:
    """One per query: keeps the identity from batch to batch."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self._identity: Identity | None = None

    def run(self, what: str, attempt: Attempt, wanted: Callable[[], bool] = lambda: True) -> Written | None:
        """Attempt until one succeeds or it is not wanted any more. Raises DriverFenced, or what the last one raised."""
        identity = self._own_identity()
        for number in range(1, self.options.batch_attempts + 1):
            try:
                identity.fresh()
                written = attempt(identity)
            except Exception as error:  # noqa: BLE001  # whatever it was, the transaction must not stay open
                self._recover(identity, what, error)
                if number >= self.options.batch_attempts or not _is_worth_a_retry(error) or not wanted():
                    raise _readable(error, self.options)  # noqa: B904  # mostly the error itself
                logger.warning("%s failed (attempt %d of %d): %s", what, number, self.options.batch_attempts, error)
                continue
            if written is None:
                # Skipped: nothing was written with this epoch, and nothing is open.
                logger.info("%s was committed before: skipped", what)
            return written
        raise InvariantError("the last attempt either returns or raises")

    def close(self) -> None:
        if self._identity is not None:
            self._identity.close()
            self._identity = None

    def _own_identity(self) -> Identity:
        if self._identity is None:
            options = self.options
            self._identity = Identity(options.client, options.transactional_id, options.transaction_timeout_ms)
        return self._identity

    def _recover(self, identity: Identity, what: str, error: Exception) -> None:
        """Leave no transaction open. Raises DriverFenced when it is not ours any more."""
        in_doubt = isinstance(error, KafkaError) and error.in_doubt
        if not isinstance(error, ProducerFenced):
            try:
                identity.abandon()
            except ProducerFenced as fenced:
                error = fenced
            except KafkaError as lost:
                logger.warning("%s: its transaction could not be aborted yet: %s", what, lost)
        if isinstance(error, ProducerFenced):
            raise self._fenced(what, error, in_doubt=in_doubt) from error

    def _fenced(self, what: str, error: ProducerFenced, *, in_doubt: bool) -> DriverFenced:
        visible = "Nothing of this batch is visible"
        if in_doubt:
            visible = "Whether this batch is visible is not known here: the next driver finds out"
        return DriverFenced(
            f"{what}: another driver has taken over transactional id {self.options.transactional_id}, or the "
            f"transaction was open for longer than {self.options.transaction_timeout_ms} ms. {visible}. "
            "If a second query uses the same transactional id or the same group, give it its own; if the batch is too "
            "slow, raise transaction_timeout_ms or make batches smaller (maxOffsetsPerTrigger); else this driver was "
            f"replaced and can go. ({error})"
        )


def _is_worth_a_retry(error: Exception) -> bool:
    """Wrong settings, contradictions and rows that no topic can take fail again."""
    if isinstance(error, KafkaError) and error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return False
    return not isinstance(error, OptionError | CannotResume | RowError) and ROW_ERROR_MARK not in str(error)


def _readable(error: Exception, options: SinkOptions) -> Exception:
    """The error as a person wants to read it."""
    if isinstance(error, KafkaError) and error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return OptionError(
            f"transaction_timeout_ms is {options.transaction_timeout_ms}, more than the broker allows: lower it, or "
            "raise transaction.max.timeout.ms of the broker"
        )
    text = str(error)
    if ROW_ERROR_MARK in text:
        return RowError(text.split(ROW_ERROR_MARK, 1)[1].split("\n", 1)[0])
    return error
