"""Who writes: the transactional id of a driver, with one epoch per attempt at a batch.

Theory of operation. Tasks count sequence numbers from 0, so an epoch is good for one attempt only. Its life:

    NONE     no producer id yet                 -> init, which fences older drivers             -> IN_USE
    IN_USE   handed to tasks                    -> commit or abandon                            -> FRESH or SPENT
    IN_USE   and abandoning failed              -> abandon again before the next attempt
    FRESH    the end brought a new epoch (TV2)  -> hand it out                                  -> IN_USE
    SPENT    the end kept the epoch (TV0/1)     -> ask for the next one, as its present owner   -> IN_USE

Only the first step of a driver's life is a blank InitProducerId. All others name the epoch the driver holds, so that a
driver that was replaced is told so instead of fencing its successor.
"""

from __future__ import annotations

from enum import Enum

from oncelog.client import Admin, ClientConfig, FatalError, ProducerFenced, TransactionClient
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerEpoch, ProducerIdAndEpoch


class EpochState(Enum):
    NONE = "none"
    IN_USE = "in use"
    FRESH = "fresh"
    SPENT = "spent"


class Identity:
    def __init__(self, config: ClientConfig, transactional_id: str, timeout_ms: int) -> None:
        self.client = TransactionClient(config)
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.state = EpochState.NONE

    def fresh(self) -> ProducerIdAndEpoch:
        """A producer id and epoch that nothing was written with."""
        if self.state is EpochState.NONE:
            self.client.init(self.transactional_id, self._timeout_ms)
        elif self.state is EpochState.IN_USE:
            self.abandon()
        if self.state is EpochState.SPENT:
            self._next_epoch()
        self.state = EpochState.IN_USE
        return self.client.identity

    def commit(self) -> None:
        self.client.end(commit=True)
        self.state = self._after_end()

    def abandon(self) -> None:
        """Abort what is open, if anything is."""
        if self.state is not EpochState.IN_USE:
            return
        try:
            self.client.end(commit=False)
            self.state = self._after_end()
        except FatalError as error:
            # Nothing was open, or a commit whose answer was lost went through after all. What is committed decides
            # later which of the two it was; here only the epoch counts.
            if error.code not in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
                raise
            self.state = EpochState.SPENT

    def _after_end(self) -> EpochState:
        return EpochState.FRESH if self.client.uses_tv2 else EpochState.SPENT

    def _next_epoch(self) -> None:
        held = self.client.identity
        try:
            self.client.fresh_epoch()
        except ProducerFenced:
            # A coordinator that moved or restarted has forgotten that our lost commit bumped the epoch by one.
            bumped = ProducerIdAndEpoch(held.producer_id, ProducerEpoch(held.epoch + 1))
            if not self.client.uses_tv2 or not self._committed_last(bumped):
                raise
            self.client.init(self.transactional_id, self._timeout_ms, bumped)

    def _committed_last(self, identity: ProducerIdAndEpoch) -> bool:
        """Whether the last thing that happened to the id is a commit that brought this epoch.

        Over TV2 that can only be our own: a rival would have taken this epoch to begin with, and committed to a later
        one.
        """
        found = Admin(self.client).describe_transactions([self.transactional_id])[self.transactional_id]
        return found.state == "CompleteCommit" and (found.producer_id, found.producer_epoch) == identity

    def close(self) -> None:
        self.client.close()
