"""A producer on its event loop: the sender, and the transactions around it.

The states are those of `transaction_state`; calls that change them are carried out one at a time. A transaction speaks
one protocol: over TV2 brokers add partitions by themselves and every end gives a fresh epoch; before TV2 partitions are
added here, sequence numbers run on from one transaction to the next, and an epoch is asked for only when they are in
doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from oncelog.client.classification import produce_error
from oncelog.client.cluster import Cluster
from oncelog.client.errors import AbortableError, ErrorCode, FatalError, IllegalState, KafkaError, TransactionError
from oncelog.client.offsets import GroupMetadata, Offsets
from oncelog.client.partitioner import Partitioner
from oncelog.client.prepared_transaction import Completion, PreparedTransaction, resume
from oncelog.client.produce_channel import PRODUCE_VERSION_BEFORE_TV2
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.sender import Sender
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.client.transaction_state import ADVICE, Event, State, TransactionState
from oncelog.core.ids import NO_IDENTITY, TopicPartition


class ProducerCore:
    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.partitioner = Partitioner(ignore_keys=config.ignore_keys)
        self.state = TransactionState()
        self.conversation = AsyncTransactionClient(cluster)
        self.sender = Sender(cluster, config, self.partitioner, self if config.transactional_id else None)
        self._turn = asyncio.Lock()
        self._added: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._used = False
        """Whether brokers may know anything of the present transaction."""
        self._epoch_in_doubt = False
        self._held: PreparedTransaction | None = None
        """The transaction that is prepared, here or by a predecessor, and not yet ended."""
        self._refreshing = asyncio.create_task(self._keep_metadata_fresh())

    async def _keep_metadata_fresh(self) -> None:
        """Notice new partitions of topics in use, and topics that were made anew under their names."""
        while True:
            await asyncio.sleep(self.config.client.metadata_max_age_ms / 1000)
            # A cluster that cannot be asked now is asked next time; whoever needs it meanwhile is told.
            with contextlib.suppress(KafkaError):
                await self.cluster.refresh(
                    list(self.cluster.topics), self.cluster.deadline(self.config.client.request_timeout_ms)
                )

    @contextlib.asynccontextmanager
    async def _transactional(self) -> AsyncIterator[None]:
        """Around a call that is about transactions: one at a time."""
        if not self.config.transactional_id:
            raise IllegalState("this producer is not transactional: set transactional.id")
        async with self._turn:
            yield

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Around requests to the coordinator."""
        try:
            yield
        except TransactionError as error:
            self.state.fail(error)
            raise

    # The sender's gate

    def admits(self, partition: TopicPartition) -> bool:
        if self.state.current not in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED):
            return False
        if self.conversation.uses_tv2 or partition in self._added:
            self._used = True
            return True
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_waiting())
        return False

    def explain(self, partition: TopicPartition, error: KafkaError) -> KafkaError:
        explained = produce_error(error)
        self._epoch_in_doubt = True
        self.state.fail(explained)
        return explained

    async def _add_waiting(self) -> None:
        """Before TV2: tell the coordinator about every partition that has batches waiting."""
        try:
            wanted = [p for p in self.sender.accumulator.partitions() if p not in self._added]
            self._used = True
            await self.conversation.add_partitions(wanted)
            self._added.update(wanted)
        except KafkaError as error:
            if not isinstance(error, TransactionError):
                error = AbortableError(error.code, f"{error.message}: abort the transaction and begin it again")
            self.state.fail(error)
            self.sender.fail_waiting(error)
        finally:
            self._adding = None
        self.sender.look()

    # Transactions

    async def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take over the transactional id. With `keep_prepared`: what the predecessor had prepared, if anything."""
        async with self._transactional():
            self.state.check(Event.INITIALISED)
            with self._noting_errors():
                await self.conversation.init(
                    self.config.transactional_id or "",
                    self.config.transaction_timeout_ms,
                    two_phase=self.config.two_phase_commit,
                    keep_prepared=keep_prepared,
                )
            tv2 = self.conversation.uses_tv2
            self.sender.channel.version_max = None if tv2 else PRODUCE_VERSION_BEFORE_TV2
            self.sender.restart(self.conversation.identity)
            if self.conversation.prepared == NO_IDENTITY:
                self.state.on(Event.INITIALISED)
                return None
            self.state.on(Event.RECOVERED)
            self._used = True
            self._held = self._named(*self.conversation.prepared)
            return self._held

    async def flush(self) -> None:
        """Wait until every record sent so far is delivered or given up; `delivery.timeout.ms` bounds it."""
        await self.sender.flush()

    async def begin_transaction(self) -> None:
        """What is sent from now on belongs together."""
        async with self._transactional():
            self.state.on(Event.BEGIN)
            self._added.clear()
            self._used = self._epoch_in_doubt = False

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commit a consumer's offsets (next offset to read, per partition) with this transaction.

        Give the consumer's `group_metadata()`, so that a consumer that lost its partitions cannot commit.
        """
        async with self._transactional():
            self.state.check_accepting()
            self._used = self._used or bool(offsets)
            with self._noting_errors():
                await self.conversation.commit_offsets(group, offsets)

    async def commit_transaction(self) -> None:
        """Deliver everything and make it visible. After TimedOut call it again: only that finds out what happened."""
        async with self._transactional():
            self.state.on(Event.COMMIT)
            await self._flush_or_raise(State.COMMITTING)
            await self._end(commit=True)

    async def abort_transaction(self) -> None:
        """Throw away what was sent since `begin_transaction`; after an AbortableError this is the way on."""
        async with self._transactional():
            await self._abort()

    async def abort_if_possible(self) -> None:
        """After an error, which is the one to report: a producer that cannot even abort says so on its next use."""
        if self.state.current in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            with contextlib.suppress(KafkaError):
                await self.abort_transaction()

    async def _abort(self) -> None:
        self.state.on(Event.ABORT)
        if self._adding is not None:
            await asyncio.wait([self._adding])
        reason = AbortableError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted before this was sent")
        self._epoch_in_doubt |= await self.sender.abandon(reason)
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        with self._noting_errors():
            if self._used:
                await self._tell_coordinator(commit)
                self._used = False
            if self._epoch_in_doubt and not self.conversation.uses_tv2:
                await self.conversation.fresh_epoch()
                if self._held is not None:
                    # So `resume` can tell a transaction that timed out, whose epoch was bumped, from the next one.
                    await self.conversation.fresh_epoch()
        if self.sender.identity != self.conversation.identity:
            self.sender.restart(self.conversation.identity)
        self._held = None
        self.state.on(Event.ENDED)

    async def _tell_coordinator(self, commit: bool) -> None:
        try:
            await self.conversation.end(commit)
        except FatalError:
            if commit or self.conversation.uses_tv2:
                raise
            # Before TV2 an abort is refused when the coordinator knows of nothing open: nothing reached it, or the
            # transaction timed out. Whoever still owns the id can bump its epoch; a fenced producer cannot.
            await self.conversation.fresh_epoch()

    async def _flush_or_raise(self, expected: State) -> None:
        await self.sender.flush()
        if self.state.current is not expected and self.state.error is not None:
            raise type(self.state.error)(self.state.error.code, self.state.error.message) from self.state.error

    # Two-phase commit

    async def prepare(self) -> PreparedTransaction:
        """Flush, accept nothing more, and name the transaction for the other side to remember."""
        async with self._transactional():
            self.state.check(Event.PREPARE)
            await self._flush_or_raise(State.IN_TRANSACTION)
            self.state.on(Event.PREPARE)
            # Sequences and epochs must not run on into the next transaction: before TV2 its records could otherwise
            # be committed by somebody who completes this one again.
            self._epoch_in_doubt = True
            self._held = self._named(*self.conversation.identity)
            return self._held

    async def complete(self, prepared: PreparedTransaction) -> Completion:
        """Commit the prepared transaction if it is the one given, which the other side remembers; else abort it.

        After a crash call it before `init_transactions`. Raises AbortableError if the transaction is lost, because its
        coordinator aborted it meanwhile. After TimedOut call it again.
        """
        async with self._transactional():
            if prepared.transactional_id != self.config.transactional_id:
                raise IllegalState(
                    f"the transaction was prepared as {prepared.transactional_id!r}, this producer is "
                    f"{self.config.transactional_id!r}"
                )
            if self.state.current in (State.UNINITIALISED, State.READY):
                # Before TV2 the next transaction must not have the same epoch: `_end` says why.
                return await resume(self.cluster, prepared, skip_epoch=self.state.current is State.UNINITIALISED)
            if self._held is None:
                current = self.state.current
                raise IllegalState(f"nothing is prepared while {current.value}: {ADVICE[current]}")
            if prepared.names_same(self._held):
                self.state.on(Event.COMMIT)
                await self._end(commit=True)
                return Completion.COMMITTED
            await self._abort()
            return Completion.OTHER_ABORTED

    def _named(self, producer_id: int, epoch: int) -> PreparedTransaction:
        version = self.conversation.transaction_version
        return PreparedTransaction(self.config.transactional_id or "", producer_id, epoch, version)

    # The end

    async def close(self, timeout_ms: float) -> None:
        """Deliver what is waiting, abort an open transaction, and close the connections."""
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
