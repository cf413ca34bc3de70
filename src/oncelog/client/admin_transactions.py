"""Transactions and producers, as coordinators and partition leaders know them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.arguments import list_of, to_partition
from oncelog.client.attempts import Attempts
from oncelog.client.cluster import CoordinatorKind
from oncelog.client.offsets import by_topic
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    """-1 when no transaction is open."""
    partitions: list[TopicPartition]
    coordinator: str


class ProducerDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 when the producer has no open transaction on this partition."""


class TransactionAdmin(AdminBase):
    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators. `pattern` is a regular expression over the ids."""
        request = ListTransactionsRequest(
            state_filters=list_of("states", states),
            producer_id_filters=list(producer_ids),
            duration_filter=running_longer_than_ms,
            transactional_id_pattern=pattern,
        )
        listings = []
        for node_id, response in await self._ask_everyone(request, ListTransactionsResponse):
            raise_first([(response.error_code, f"listing transactions of broker {node_id}", None)])
            unknown = response.unknown_state_filters
            raise_first((ErrorCode.INVALID_REQUEST, f"state {name!r}", "no such state") for name in unknown)
            listings += [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state, node_id)
                for t in response.transaction_states
            ]
        return sorted(listings)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, producer and open partitions of each id. Raises TRANSACTIONAL_ID_NOT_FOUND for an unknown one."""
        descriptions = {}
        for transactional_id in list_of("transactional ids", transactional_ids):
            response = await self.cluster.ask_coordinator(
                CoordinatorKind.TRANSACTION,
                transactional_id,
                DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                DescribeTransactionsResponse,
                codes=lambda answer: [state.error_code for state in answer.transaction_states],
            )
            state = response.transaction_states[0]
            raise_first([(state.error_code, f"transactional id {transactional_id}", None)])
            where = await self.cluster.coordinator(CoordinatorKind.TRANSACTION, transactional_id, self._deadline())
            descriptions[transactional_id] = TransactionDescription(
                transactional_id,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms,
                [TopicPartition(topic.topic, n) for topic in state.topics for n in topic.partitions],
                str(where),
            )
        return descriptions

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, readable_only: bool = False
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers each partition leader remembers. With `readable_only`, partitions of topics that ACLs do not
        allow to read are left out; otherwise they raise."""

        def request(members: list[TopicPartition]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                topics=[TopicRequest(name=topic, partition_indexes=n) for topic, n in by_topic(members).items()]
            )

        found = await self._ask_leaders(
            partitions,
            request,
            DescribeProducersResponse,
            lambda answer: answer.topics,
            "producers",
            left_out=[ErrorCode.TOPIC_AUTHORIZATION_FAILED] if readable_only else [],
        )
        return {
            partition: [
                ProducerDescription(
                    p.producer_id,
                    p.producer_epoch,
                    p.last_sequence,
                    p.last_timestamp,
                    p.coordinator_epoch,
                    p.current_txn_start_offset,
                )
                for p in response.active_producers
            ]
            for partition, response in found.items()
        }

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdAndEpoch]:
        """Abort what each id has open and shut out its present producer. Returns the new identities."""
        fenced = {}
        for transactional_id in list_of("transactional ids", transactional_ids):
            owner = AsyncTransactionClient(self.cluster)
            fenced[transactional_id] = await owner.init(transactional_id, deadline=self._deadline())
        return fenced

    async def force_terminate_transaction(self, transactional_id: str) -> None:
        """End a transaction that was prepared for two-phase commit and whose owner will not come back."""
        await self.fence_producers([transactional_id])

    async def abort_transaction(self, partition: TopicPartition, start_offset: int) -> None:
        """Abort a hanging transaction on one partition: one that its coordinator does not know any more.

        `start_offset` is `transaction_start_offset` of `describe_producers`. Prefer `fence_producers` when the
        transactional id is known: this writes an abort marker without asking any coordinator.
        """
        target, what, attempts = to_partition(partition), "the abort marker", Attempts()
        deadline = self._deadline()

        async def attempt() -> None:
            # Looked up each time: if the answer to a marker was lost, a second one could hit the next transaction.
            producers = (await self.describe_producers([target]))[target]
            producer = next((p for p in producers if p.transaction_start_offset == start_offset), None)
            if producer is None:
                if not attempts.in_doubt:
                    message = f"no transaction starts at offset {start_offset}"
                    raise_first([(ErrorCode.INVALID_TXN_STATE, f"{target}", message)])
                return  # it has ended, by the marker that got no answer
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name=target.topic, partition_indexes=[target.partition])],
                coordinator_epoch=max(producer.coordinator_epoch, 0),
            )
            await self._ask_leaders_once(
                [target],
                lambda _: WriteTxnMarkersRequest(markers=[marker]),
                WriteTxnMarkersResponse,
                lambda answer: [topic for marked in answer.markers for topic in marked.topics],
                what,
                {},
                deadline,
                attempts,
            )

        await self.cluster.retrying(what, attempt, deadline, attempts)
