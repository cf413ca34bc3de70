"""Transactions with the coordinators of a cluster, without the records.

`TransactionClient` owns a transactional id: it initialises, adds partitions and offsets, and ends transactions. The
records may be produced by anyone to whom it is shared (`batch_producer`), so one transaction can span many tasks on
many machines. That is what the Spark sink does and what `Producer` builds on.

Every call retries what may be retried (coordinators that move or load, transactions still completing, lost answers)
until its deadline and then raises TimedOut; any other error is classified by `classification`. Repeating a request
whose answer was lost is safe: the coordinator recognises a repeated EndTxn, a repeated InitProducerId with the expected
epoch, and partitions and offsets that are already in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Self, TypeVar

from oncelog.client.arguments import to_partition
from oncelog.client.attempts import Attempts, explained
from oncelog.client.blocking import Blocking, blocking
from oncelog.client.classification import Step, transaction_error
from oncelog.client.cluster import Cluster, CoordinatorKind
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.errors import AbortableError, FatalError, IllegalState, UnsupportedByBroker
from oncelog.client.offsets import GroupMetadata, OffsetAndMetadata, Offsets, by_topic, fetch_offsets, offset_structs
from oncelog.client.producer_config import PRODUCER_TABLE
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.client.topic_facts import TopicLookup
from oncelog.core.errors import RETRIABLE, ErrorCode
from oncelog.core.ids import NO_IDENTITY, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from oncelog.protocol.schema import Message

R = TypeVar("R", bound=Message)

TRANSACTION_TIMEOUT_MS: Final = PRODUCER_TABLE.defaults.integer("transaction.timeout.ms")
TWO_PHASE_VERSION: Final = 6
"""The first version of InitProducerId with `enable2Pc` and `keepPreparedTxn` (KIP-939)."""

# A transaction is one protocol from its first request to its last: mixing the versions of the two would let the
# coordinator add a partition twice or expect an epoch that nobody was told.
_CAPS_BEFORE_TV2: Final[dict[type, int]] = {EndTxnRequest: 4, TxnOffsetCommitRequest: 4}
_RETRY: Final = frozenset(RETRIABLE)
_NOT_OPEN: Final = (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)


class AsyncTransactionClient:
    """For asyncio programs; `TransactionClient` is the same for threads."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.transactional_id = ""
        self.identity = NO_IDENTITY
        self.transaction_version = 0
        self._timeout_ms = TRANSACTION_TIMEOUT_MS
        self._two_phase = False
        self._topics = TopicLookup(cluster)

    def join(self, transaction: SharedTransaction) -> Self:
        """Speak for a transaction that somebody else has begun. Nobody is fenced by that."""
        self.transactional_id = transaction.transactional_id or ""
        self.identity = transaction.identity
        self.transaction_version = transaction.transaction_version
        return self

    @property
    def uses_tv2(self) -> bool:
        """Whether brokers add partitions by themselves and every end bumps the epoch."""
        return self.transaction_version >= 2

    def _deadline(self, deadline: Deadline | None) -> Deadline:
        return deadline or self.cluster.deadline()

    async def init(
        self,
        transactional_id: str,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        expected: ProducerIdAndEpoch | None = None,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
        deadline: Deadline | None = None,
    ) -> ProducerIdAndEpoch:
        """Take over the id: fence its predecessor, resolve what it left open, get a producer id and a fresh epoch.

        With `expected` (the identity held now) it only bumps the own epoch, and fails as fenced if somebody else took
        over meanwhile.
        """
        deadline = self._deadline(deadline)
        response = await self._init(transactional_id, timeout_ms, expected, two_phase, keep_prepared, deadline)
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._two_phase = two_phase
        self.transaction_version = await self._learn_version(deadline)
        self.identity = ProducerIdAndEpoch.of(response.producer_id, response.producer_epoch)
        self.prepared = ProducerIdAndEpoch.of(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        return self.identity

    prepared: ProducerIdAndEpoch = NO_IDENTITY
    """After `init(keep_prepared=True)`: the transaction that was prepared and is still to be ended."""

    async def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        two_phase: bool,
        keep_prepared: bool,
        deadline: Deadline,
    ) -> InitProducerIdResponse:
        held = expected or NO_IDENTITY
        wants_two_phase = two_phase or keep_prepared
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=held.producer_id,
            producer_epoch=held.epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        )
        if wants_two_phase:
            await self._demand_two_phase(transactional_id, deadline)
        attempts = Attempts()
        response = await self.cluster.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            request,
            InitProducerIdResponse,
            deadline=deadline,
            retry=_RETRY,
            version_max=TWO_PHASE_VERSION if wants_two_phase else None,
            attempts=attempts,
        )
        if response.error_code:
            with explained(attempts):
                raise transaction_error(Step.INIT, response.error_code, f"transactional id {transactional_id}")
        return response

    async def _demand_two_phase(self, transactional_id: str, deadline: Deadline) -> None:
        connection = await self.cluster.coordinator(CoordinatorKind.TRANSACTION, transactional_id, deadline)
        if not connection.wire.supports(InitProducerIdRequest, TWO_PHASE_VERSION):
            raise UnsupportedByBroker(
                f"{connection} has no two-phase commit (InitProducerId v{TWO_PHASE_VERSION}, KIP-939): "
                "leave transaction.two.phase.commit.enable off"
            )

    async def _learn_version(self, deadline: Deadline) -> int:
        connection = await self.cluster.coordinator(CoordinatorKind.TRANSACTION, self.transactional_id, deadline)
        version = connection.wire.transaction_version
        speaks_it = connection.wire.supports(EndTxnRequest, 5) and connection.wire.supports(TxnOffsetCommitRequest, 5)
        return version if speaks_it else min(version, 1)

    async def fresh_epoch(self, *, deadline: Deadline | None = None) -> ProducerIdAndEpoch:
        """An epoch in which sequence numbers start at 0 again. Over TV2 the last `end` has given one already."""
        self._check_initialised()
        return await self.init(
            self.transactional_id, self._timeout_ms, self.identity, two_phase=self._two_phase, deadline=deadline
        )

    async def share(self, topics: Collection[str] = ()) -> SharedTransaction:
        """The transaction of now, for `BatchProducer`s in other processes: send it to them, with the `ClientConfig`.

        With what they must know of the topics they write to; those that do not exist are left out.
        """
        self._check_initialised()
        facts = await self._topics.facts(topics) if topics else {}
        return SharedTransaction(self.transactional_id, self.identity, self.transaction_version, facts)

    async def add_partitions(self, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None) -> None:
        """Tell the coordinator which partitions will be written. Over TV2 brokers do that: nothing is sent."""
        self._check_initialised()
        wanted = by_topic(dict.fromkeys(to_partition(partition) for partition in partitions))
        if self.uses_tv2 or not wanted:
            return
        deadline = self._deadline(deadline)
        for topic in wanted:
            # The coordinator refuses a topic that is not there; asking for it lets the broker create it.
            await self.cluster.topic(topic, deadline)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in wanted.items()
            ],
        )
        await self._ask(
            Step.ADD,
            request,
            AddPartitionsToTxnResponse,
            lambda answer: [
                (p.partition_error_code, f"partition {topic.name}-{p.partition_index}")
                for topic in answer.results_by_topic_v3_and_below
                for p in topic.results_by_partition
            ],
            deadline,
        )

    async def add_offsets(self, group_id: str, *, deadline: Deadline | None = None) -> None:
        """Tell the coordinator that offsets of a group will be committed. Over TV2 nothing is sent."""
        self._check_initialised()
        if self.uses_tv2:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group_id,
        )
        await self._ask(
            Step.ADD,
            request,
            AddOffsetsToTxnResponse,
            lambda answer: [(answer.error_code, f"offsets of group {group_id}")],
            deadline,
        )

    async def commit_offsets(
        self, group: GroupMetadata | str, offsets: Offsets, *, deadline: Deadline | None = None
    ) -> None:
        """Make offsets part of the transaction: they become the group's when it commits."""
        self._check_initialised()
        if not offsets:
            return
        deadline = self._deadline(deadline)
        member = GroupMetadata(group) if isinstance(group, str) else group
        await self.add_offsets(member.group_id, deadline=deadline)
        await self._ask(
            Step.OFFSETS,
            self._offset_request(member, offsets),
            TxnOffsetCommitResponse,
            lambda answer: [
                (p.error_code, f"group {member.group_id}, partition {topic.name}-{p.partition_index}")
                for topic in answer.topics
                for p in topic.partitions
            ],
            deadline,
            group_id=member.group_id,
        )

    def _offset_request(self, member: GroupMetadata, offsets: Offsets) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=offset_structs(offsets, TxnOffsetCommitRequestTopic, TxnOffsetCommitRequestPartition),
        )

    async def end(self, commit: bool, *, deadline: Deadline | None = None) -> ProducerIdAndEpoch:
        """Commit or abort. Returns the identity for the next transaction: over TV2 with a fresh epoch, else unchanged.

        Raises TimedOut when the outcome stayed unknown; calling it again with the same decision is safe.
        """
        self._check_initialised()
        deadline = self._deadline(deadline)
        attempts = Attempts()
        with explained(attempts):
            response = await self._ask_end(commit, deadline, attempts)
            if commit and self.uses_tv2 and response.error_code in _NOT_OPEN:
                await self._find_out(response.error_code, deadline)
            return self._ended(commit, response, "ending the transaction")

    def _ended(self, commit: bool, response: EndTxnResponse, what: str) -> ProducerIdAndEpoch:
        self._raise_first(Step.COMMIT if commit else Step.ABORT, [(response.error_code, what)])
        if response.producer_id >= 0:
            self.identity = ProducerIdAndEpoch.of(response.producer_id, response.producer_epoch)
        return self.identity

    async def _ask_end(self, commit: bool, deadline: Deadline, attempts: Attempts) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        return await self.cluster.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            self.transactional_id,
            request,
            EndTxnResponse,
            deadline=deadline,
            retry=_RETRY,
            version_max=self._version_max(EndTxnRequest),
            attempts=attempts,
        )

    async def _find_out(self, code: int, deadline: Deadline | None) -> None:
        """A commit was refused: raise AbortableError if the coordinator has only timed the transaction out.

        Over TV2 an abort with the same identity succeeds then, and it fails when somebody else took the id over. A
        commit that had succeeded is never refused, so nothing committed can be hit by this.
        """
        try:
            await self.end(False, deadline=deadline)
        except FatalError:
            return
        raise AbortableError(
            ErrorCode(code),
            f"transactional id {self.transactional_id}: no transaction was open at the coordinator: it was empty, or "
            "it timed out (transaction.timeout.ms) and was aborted; begin it again",
        )

    async def resume(
        self, transaction: SharedTransaction, *, commit: bool, deadline: Deadline | None = None
    ) -> ProducerIdAndEpoch:
        """End a transaction that another process has shared and left open. Nobody is fenced by that."""
        self.join(transaction)
        attempts = Attempts()
        with explained(attempts):
            response = await self._ask_end(commit, self._deadline(deadline), attempts)
            return self._ended(commit, response, "ending the transaction of another process")

    async def fetch_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        require_stable: bool = True,
        *,
        deadline: Deadline | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group with their metadata; partitions without one are left out."""
        return await fetch_offsets(
            self.cluster, group_id, partitions, self._deadline(deadline), require_stable=require_stable
        )

    async def _ask(
        self,
        step: Step,
        request: Message,
        response_type: type[R],
        results: Callable[[R], list[tuple[int, str]]],
        deadline: Deadline | None,
        *,
        group_id: str | None = None,
    ) -> None:
        """Ask the coordinator of this id, or of a group. Raises for the first code that is not to be retried.

        `results` are the codes of an answer, and what each is about.
        """
        attempts = Attempts()
        with explained(attempts):
            response = await self.cluster.ask_coordinator(
                CoordinatorKind.TRANSACTION if group_id is None else CoordinatorKind.GROUP,
                self.transactional_id if group_id is None else group_id,
                request,
                response_type,
                codes=lambda answer: [code for code, _ in results(answer)],
                deadline=deadline,
                retry=_RETRY,
                version_max=self._version_max(type(request)),
                attempts=attempts,
            )
            self._raise_first(step, results(response))

    def _check_initialised(self) -> None:
        if self.identity == NO_IDENTITY:
            raise IllegalState("call init(transactional_id) first")

    def _version_max(self, request_type: type) -> int | None:
        return None if self.uses_tv2 else _CAPS_BEFORE_TV2.get(request_type)

    def _raise_first(self, step: Step, results: Iterable[tuple[int, str]]) -> None:
        """Raise for the first real failure; partitions that were not attempted because of another one come last."""
        failures = [(code, what) for code, what in results if code]
        failures.sort(key=lambda failure: failure[0] == ErrorCode.OPERATION_NOT_ATTEMPTED)
        for code, what in failures:
            raise transaction_error(step, code, f"{what}, transactional id {self.transactional_id}")


class TransactionClient(Blocking):
    """Transactions for threads, without the records: every call blocks, retries what may be retried, and is bounded.

    Calls of several threads are carried out side by side; what one transaction needs done in order (add, produce, end)
    is for the caller to order. What `share` returns may be handed to other processes; this object may not.
    """

    def __init__(self, config: ClientConfig | Blocking) -> None:
        super().__init__(config)
        self.core = AsyncTransactionClient(self.cluster)

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return self.core.identity

    @property
    def transaction_version(self) -> int:
        return self.core.transaction_version

    @property
    def uses_tv2(self) -> bool:
        return self.core.uses_tv2

    init = blocking(AsyncTransactionClient.init)
    fresh_epoch = blocking(AsyncTransactionClient.fresh_epoch)
    share = blocking(AsyncTransactionClient.share)
    add_partitions = blocking(AsyncTransactionClient.add_partitions)
    add_offsets = blocking(AsyncTransactionClient.add_offsets)
    commit_offsets = blocking(AsyncTransactionClient.commit_offsets)
    end = blocking(AsyncTransactionClient.end)
    resume = blocking(AsyncTransactionClient.resume)
    fetch_offsets = blocking(AsyncTransactionClient.fetch_offsets)
