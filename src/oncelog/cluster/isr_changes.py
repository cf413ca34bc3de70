"""The AlterPartition requests of a broker: a state machine without sockets and clock.

One request is under way at a time, and takes along all proposals that wait (see `cluster.replicas`). The owner calls
`submit` for a proposal, calls `poll` when the time `wake_ms` has come, sends the request to the active controller, and
passes the response or the failure back. A proposal is sent until the controller decides it or metadata ends it.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from oncelog.cluster.exchange import Exchange
from oncelog.cluster.replicas import IsrProposal, ProposalReaction, Replicas
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NodeId
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ChangedPartition,
    PartitionChange,
    TopicChange,
)

BACKOFF_MS: Final = 50
TIMEOUT_MS: Final = 30_000
"""As the request timeout of a broker's channel to the controller."""


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


class SendAlterPartition(NamedTuple):
    number: int
    request: AlterPartitionRequest


class _Submitted(NamedTuple):
    replicas: Replicas
    proposal: IsrProposal

    @property
    def is_open(self) -> bool:
        return self.replicas.proposal is self.proposal


class IsrChanges:
    def __init__(self, broker_id: NodeId) -> None:
        self._broker_id = broker_id
        self._exchange = Exchange(TIMEOUT_MS)
        self._waiting: dict[PartitionKey, _Submitted] = {}
        self._sent: dict[PartitionKey, _Submitted] = {}

    @property
    def wake_ms(self) -> int | None:
        """When to call `poll` next if proposals wait. None means now."""
        return self._exchange.wake_ms

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._sent

    def submit(self, key: PartitionKey, replicas: Replicas) -> None:
        """The replicas have made a proposal. It replaces one of an earlier leadership."""
        if replicas.proposal is not None:
            self._waiting[key] = _Submitted(replicas, replicas.proposal)

    def poll(self, now_ms: int, broker_epoch: int) -> SendAlterPartition | None:
        if self._exchange.has_timed_out(now_ms):
            self._exchange.give_up()
            self._put_back()
        self._waiting = {key: submitted for key, submitted in self._waiting.items() if submitted.is_open}
        if not self._waiting or not self._exchange.is_due(now_ms):
            return None
        self._sent, self._waiting = self._waiting, {}
        return SendAlterPartition(self._exchange.sent(now_ms), self._request(broker_epoch))

    def _request(self, broker_epoch: int) -> AlterPartitionRequest:
        topics: dict[UUID, TopicChange] = {}
        for (topic_id, index), (_, proposal) in self._sent.items():
            topics.setdefault(topic_id, TopicChange(topic_id=topic_id)).partitions.append(_change(index, proposal))
        return AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))

    def on_failure(self, number: int, now_ms: int) -> None:
        if self._exchange.accept(number):
            self._exchange.delay(now_ms, BACKOFF_MS)
            self._put_back()

    def on_response(
        self, number: int, response: AlterPartitionResponse, now_ms: int
    ) -> dict[PartitionKey, ProposalReaction]:
        """Returns the partitions whose ISR or maximal ISR has changed: their high watermark may move."""
        if not self._exchange.accept(number):
            return {}
        changed = {} if response.error_code != ErrorCode.NONE else self._take(response)
        if self._sent:
            self._exchange.delay(now_ms, BACKOFF_MS)
            self._put_back()
        return changed

    def _take(self, response: AlterPartitionResponse) -> dict[PartitionKey, ProposalReaction]:
        changed: dict[PartitionKey, ProposalReaction] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                key = PartitionKey(topic.topic_id, answer.partition_index)
                submitted = self._sent.get(key)
                reaction = ProposalReaction.RETRY if submitted is None else _answered(submitted, answer)
                if reaction is not ProposalReaction.RETRY:
                    del self._sent[key]
                if reaction in (ProposalReaction.COMMIT, ProposalReaction.REVERT):
                    changed[key] = reaction
        return changed

    def _put_back(self) -> None:
        """What was sent and is not decided waits again, unless a newer proposal does."""
        self._waiting, self._sent = {**self._sent, **self._waiting}, {}


def _answered(submitted: _Submitted, answer: ChangedPartition) -> ProposalReaction:
    return submitted.replicas.on_answer(
        submitted.proposal,
        answer.error_code,
        in_sync=tuple(map(NodeId, answer.isr)),
        leader_epoch=answer.leader_epoch,
        partition_epoch=answer.partition_epoch,
    )


def _change(index: int, proposal: IsrProposal) -> PartitionChange:
    """The recovery after an unclean election counts as done with the leader's first change."""
    return PartitionChange(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        new_isr=list(proposal.in_sync),
        new_isr_with_epochs=[
            BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch) for member in proposal.members
        ],
        partition_epoch=proposal.partition_epoch,
    )
