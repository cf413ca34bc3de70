"""A producer on its event loop: the sender, and the transactions around it, one call at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from oncelog.client.cluster import Cluster
from oncelog.client.errors import AbortableError, ErrorCode, IllegalState, KafkaError, TransactionError
from oncelog.client.offsets import GroupMetadata, Offsets
from oncelog.client.partitioner import Partitioner
from oncelog.client.prepared_transaction import Completion, PreparedTransaction, resume
from oncelog.client.produce_channel import PRODUCE_VERSION_BEFORE_TV2
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.producer_transactions import ProducerTransactions
from oncelog.client.sender import Sender
from oncelog.client.transaction_state import Event, State
from oncelog.core.ids import TopicPartition


class ProducerCore:
    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.partitioner = Partitioner(ignore_keys=config.ignore_keys)
        self.transactions = ProducerTransactions(cluster, config)
        self.state = self.transactions.state
        self.sender = Sender(cluster, config, self.partitioner, self if config.transactional_id else None)
        self._turn = asyncio.Lock()
        self._closed = False
        self._adding: asyncio.Task[None] | None = None
        self._refreshing = asyncio.create_task(self._keep_metadata_fresh())

    async def _keep_metadata_fresh(self) -> None:
        """Notice new partitions of topics in use, and topics that were made anew under their names."""
        while True:
            await asyncio.sleep(self.config.client.metadata_max_age_ms / 1000)
            # A cluster that cannot be asked now is asked next time; whoever needs it meanwhile gets the error.
            with contextlib.suppress(KafkaError):
                await self.cluster.refresh(
                    list(self.cluster.topics), self.cluster.deadline(self.config.client.request_timeout_ms)
                )

    # The sender's gate

    def admits(self, partition: TopicPartition) -> bool:
        if self.transactions.admits(partition):
            return True
        if self.transactions.takes_batches and self._adding is None:
            self._adding = asyncio.create_task(self._add_waiting())
        return False

    def explain(self, error: KafkaError) -> KafkaError:
        return self.transactions.batch_failed(error)

    async def _add_waiting(self) -> None:
        """Before TV2: tell the coordinator about every partition that has batches waiting."""
        try:
            await self.transactions.add(self.sender.accumulator.partitions())
        except TransactionError as error:
            self.sender.fail_waiting(error)
        finally:
            self._adding = None
        self.sender.send_ready()

    # Transactions

    @contextlib.asynccontextmanager
    async def _transactional(self) -> AsyncIterator[ProducerTransactions]:
        """Around a call that is about transactions: one at a time."""
        if self._closed:
            raise IllegalState("this producer is closed")
        if not self.config.transactional_id:
            raise IllegalState("this producer is not transactional: set transactional.id")
        async with self._turn:
            yield self.transactions

    async def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take over the transactional id. With `keep_prepared`: what the predecessor had prepared, if anything."""
        async with self._transactional() as transactions:
            prepared = await transactions.init(keep_prepared=keep_prepared)
            self.sender.channel.version_max = None if transactions.client.uses_tv2 else PRODUCE_VERSION_BEFORE_TV2
            self.sender.restart(transactions.client.identity)
            return prepared

    async def flush(self) -> None:
        """Wait until every record sent so far is delivered or given up; `delivery.timeout.ms` bounds it."""
        await self.sender.flush()

    async def begin_transaction(self) -> None:
        """Records that are sent from now on belong to one transaction."""
        async with self._transactional() as transactions:
            transactions.begin()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commit a consumer's offsets (next offset to read, per partition) with this transaction.

        Give the consumer's `group_metadata()`, so that a consumer that lost its partitions cannot commit.
        """
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets are a {type(offsets).__name__}: give a dict of the next offset by TopicPartition")
        if not isinstance(group, GroupMetadata | str):
            raise TypeError(f"the group is a {type(group).__name__}: give the group_metadata() of the consumer")
        async with self._transactional() as transactions:
            await transactions.add_offsets(group, offsets)

    async def commit_transaction(self) -> None:
        """Deliver everything and make it visible. After TimedOut call it again: only that finds out what happened."""
        async with self._transactional() as transactions:
            self.state.on(Event.COMMIT)
            await self.sender.flush()
            transactions.check_flushed(State.COMMITTING)
            await self._end(commit=True)

    async def abort_transaction(self) -> None:
        """Throw away what was sent since `begin_transaction`; call it after an AbortableError."""
        async with self._transactional():
            await self._abort()

    async def commit_at_end(self) -> None:
        """Commit at the end of a block that commits by itself."""
        if self.config.transactional_id and self.state.current is State.READY:
            raise IllegalState(
                "the transaction has ended within the block that commits it: leave commit_transaction() and "
                "abort_transaction() out; an error that the block raises aborts it"
            )
        await self.commit_transaction()

    async def abort_if_possible(self) -> None:
        """Abort after an error. A failure to abort is not raised, because the first error is the one to report."""
        if self.state.current in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            with contextlib.suppress(KafkaError):
                await self.abort_transaction()

    async def _abort(self) -> None:
        self.state.on(Event.ABORT)
        if self._adding is not None:
            await asyncio.wait([self._adding])
        reason = AbortableError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted before this was sent")
        self.transactions.epoch_in_doubt |= await self.sender.abandon(reason)
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        await self.transactions.end(commit=commit)
        if self.sender.identity != self.transactions.client.identity:
            self.sender.restart(self.transactions.client.identity)

    # Two-phase commit

    async def prepare(self) -> PreparedTransaction:
        """Flush, accept nothing more, and name the transaction for the other side to remember."""
        async with self._transactional() as transactions:
            self.state.check(Event.PREPARE)
            await self.sender.flush()
            return transactions.prepare()

    async def complete(self, prepared: PreparedTransaction) -> Completion:
        """Commit the prepared transaction if it is the one given, which the other side remembers; else abort it.

        After a crash call it before `init_transactions`, which aborts what is open. Raises AbortableError if the
        transaction is lost, because its coordinator aborted it meanwhile. After TimedOut call it again.
        """
        if not isinstance(prepared, PreparedTransaction):
            raise TypeError(
                f"{prepared!r} is no PreparedTransaction: PreparedTransaction.parse() makes one of its name"
            )
        async with self._transactional() as transactions:
            if prepared.transactional_id != self.config.transactional_id:
                raise IllegalState(
                    f"the transaction was prepared as {prepared.transactional_id!r}, this producer is "
                    f"{self.config.transactional_id!r}"
                )
            if self.state.current in (State.UNINITIALISED, State.READY):
                found = await resume(
                    self.cluster,
                    prepared,
                    skip_epoch=self.state.current is State.UNINITIALISED,
                    never_times_out=self.config.two_phase_commit,
                )
                if found is Completion.COMMITTED:
                    transactions.note_resumed(prepared)
                else:
                    transactions.check_not_aborted_here(prepared)
                return found
            if transactions.holds(prepared):
                self.state.on(Event.COMMIT)
                await self._end(commit=True)
                return Completion.COMMITTED
            await self._abort()
            return Completion.OTHER_ABORTED

    # The end

    async def close(self, timeout_ms: float) -> None:
        """Deliver what is waiting, abort an open transaction, and close the connections."""
        self._closed = True
        reason = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._finish()
        except (TimeoutError, KafkaError):
            # Whatever could not be finished is left to the transaction's timeout; closing must not fail.
            pass
        finally:
            self._refreshing.cancel()
            self.sender.close(reason)
            await self.cluster.close()

    async def _finish(self) -> None:
        if not self.config.transactional_id:
            await self.sender.flush()
            return
        async with self._turn:
            if self.state.current in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
                await self._abort()
