"""The transactions of one producer: their state, what the coordinator is told, and which epoch comes next.

The states are those of `transaction_state`. A transaction speaks one protocol: over TV2 brokers add partitions by
themselves and every end gives a fresh epoch; before TV2 partitions are added here, sequence numbers run on from one
transaction to the next, and an epoch is asked for only when they are in doubt.

Waits for nothing but the cluster's network. Calls come one at a time: `producer_core` sees to that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from oncelog.client.attempts import doubted
from oncelog.client.classification import produce_error
from oncelog.client.cluster import Cluster
from oncelog.client.errors import AbortableError, FatalError, IllegalState, KafkaError, TransactionError
from oncelog.client.offsets import GroupMetadata, Offsets
from oncelog.client.prepared_transaction import PreparedTransaction
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.client.transaction_state import ADVICE, Event, State, TransactionState
from oncelog.core.ids import NO_IDENTITY, ProducerIdAndEpoch, TopicPartition


class ProducerTransactions:
    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self.state = TransactionState()
        self.client = AsyncTransactionClient(cluster)
        self.epoch_in_doubt = False
        """Whether a batch of this epoch may be lost, so that sequence numbers cannot run on."""
        self._config = config
        self._added: set[TopicPartition] = set()
        self._used = False
        """Whether brokers may know anything of the present transaction."""
        self._held: PreparedTransaction | None = None
        """The transaction that is prepared, here or by a predecessor, and not yet ended."""
        self._first: ProducerIdAndEpoch | None = None
        """The first identity of this producer, if taking over the id aborted what was open under earlier ones."""
        self._resumed: PreparedTransaction | None = None
        """A transaction of a predecessor that this producer has committed."""

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Around requests to the coordinator."""
        try:
            yield
        except TransactionError as error:
            self.state.fail(error)
            raise

    async def init(self, *, keep_prepared: bool) -> PreparedTransaction | None:
        """Take over the transactional id. Returns what the predecessor had prepared and is to be kept."""
        self.state.check(Event.INITIALISED)
        with self._noting_errors():
            await self.client.init(
                self._config.transactional_id or "",
                self._config.transaction_timeout_ms,
                two_phase=self._config.two_phase_commit,
                keep_prepared=keep_prepared,
            )
        self._first = None if keep_prepared else self.client.identity
        if self.client.prepared == NO_IDENTITY:
            self.state.on(Event.INITIALISED)
            return None
        self.state.on(Event.RECOVERED)
        self._used = True
        return self._hold(*self.client.prepared)

    def begin(self) -> None:
        self.state.on(Event.BEGIN)
        self._added.clear()
        self._used = self.epoch_in_doubt = False

    # What belongs to it

    @property
    def takes_batches(self) -> bool:
        return self.state.current in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED)

    def admits(self, partition: TopicPartition) -> bool:
        """Whether batches for this partition may be sent now; before TV2 it is to be added first."""
        if not self.takes_batches or not (self.client.uses_tv2 or partition in self._added):
            return False
        self._used = True
        return True

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """Before TV2: tell the coordinator about partitions that are to be written. Raises TransactionError."""
        wanted = [partition for partition in partitions if partition not in self._added]
        self._used = True
        with self._noting_errors():
            try:
                await self.client.add_partitions(wanted)
            except KafkaError as error:
                raise _abortable(error) from error
        self._added.update(wanted)

    async def add_offsets(self, group: GroupMetadata | str, offsets: Offsets) -> None:
        self.state.check_accepting()
        self._used = self._used or bool(offsets)
        with self._noting_errors():
            await self.client.commit_offsets(group, offsets)

    def batch_failed(self, error: KafkaError) -> TransactionError:
        """Take note of it. Returns the error that the records of the batch are to see."""
        explained = produce_error(error)
        self.epoch_in_doubt = True
        self.state.fail(explained)
        return explained

    def check_flushed(self, expected: State) -> None:
        """Everything was delivered or given up. Raise what has led out of the expected state meanwhile."""
        error = self.state.error
        if self.state.current is not expected and error is not None:
            raise type(error)(error.code, error.message) from error

    # Its end

    async def end(self, *, commit: bool) -> None:
        """The event COMMIT or ABORT has come, and nothing is in flight."""
        try:
            with self._noting_errors():
                if self._used:
                    await self._tell_coordinator(commit)
                    self._used = False
                if self.epoch_in_doubt and not self.client.uses_tv2:
                    await self.client.fresh_epoch()
                    if self._held is not None:
                        # So that it can be told, if it timed out and its epoch was bumped, from the next transaction.
                        await self.client.fresh_epoch()
        except KafkaError as error:
            if self._used or not commit:
                raise
            # It is committed. What the coordinator has against the next epoch is told by the next call; without an
            # answer this one is made again, and asks for the epoch alone.
            if not isinstance(error, TransactionError):
                raise doubted(error)  # noqa: B904  # the error itself
        else:
            self.state.on(Event.ENDED)
        self._held = None

    async def _tell_coordinator(self, commit: bool) -> None:
        try:
            await self.client.end(commit)
        except FatalError:
            if commit or self.client.uses_tv2:
                raise
            # Before TV2 an abort is refused when the coordinator knows of nothing open: nothing reached it, or the
            # transaction timed out. Whoever still owns the id can bump its epoch; a fenced producer cannot.
            await self.client.fresh_epoch()

    def prepare(self) -> PreparedTransaction:
        """Accept nothing more. Everything is delivered."""
        self.check_flushed(State.IN_TRANSACTION)
        self.state.on(Event.PREPARE)
        # Sequences and epochs must not run on into the next transaction: before TV2 its records could otherwise be
        # committed by somebody who completes this one again.
        self.epoch_in_doubt = True
        return self._hold(*self.client.identity)

    def holds(self, prepared: PreparedTransaction) -> bool:
        """Whether it is the one that is prepared; if not, another one is. Raises IllegalState if none is."""
        if self._held is None:
            current = self.state.current
            raise IllegalState(f"nothing is prepared while {current.value}: {ADVICE[current]}")
        return prepared.names_same(self._held)

    def note_resumed(self, prepared: PreparedTransaction) -> None:
        self._resumed = prepared

    def check_not_aborted_here(self, prepared: PreparedTransaction) -> None:
        """The prepared transaction had ended before it was completed. Raises IllegalState if this producer may have
        aborted it."""
        first = self._first
        is_earlier = first is not None and (prepared.producer_id != first.producer_id or prepared.identity < first)
        if is_earlier and not prepared.names_same(self._resumed):
            raise IllegalState(
                f"how the prepared transaction {prepared} ended is not known: it is not open, and init_transactions() "
                "of this producer has aborted it if it was open then. 'oncelog txn history' tells. Call complete() "
                "before init_transactions(), or init_transactions(keep_prepared=True) where brokers have two-phase "
                "commit"
            )

    def _hold(self, producer_id: int, epoch: int) -> PreparedTransaction:
        name, version = self._config.transactional_id or "", self.client.transaction_version
        self._held = PreparedTransaction(name, producer_id, epoch, version)
        return self._held


def _abortable(error: KafkaError) -> TransactionError:
    if isinstance(error, TransactionError):
        return error
    return AbortableError(error.code, f"{error.message}: abort the transaction and begin it again")
