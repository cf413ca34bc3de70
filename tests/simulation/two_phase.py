"""Participants of a two-phase commit (KIP-939): their transactions outlive them and end as the vote says.

The vote stands for the outside coordinator: it is taken when everything was acknowledged, before any EndTxn is sent,
and a successor that finds the transaction still open ends it that way. Without a vote it aborts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.simulation.actors import Fenced, MustAbort, Script
from tests.simulation.model import Transaction
from tests.simulation.network import Call
from tests.simulation.producers import Dialect, TxnProducer
from tests.simulation.wire import Identity

if TYPE_CHECKING:
    from tests.simulation.history import History

PARTICIPANT: Final = Dialect("KIP-939", init=6, produce=12, end=5, txn_offset_commit=5)


@dataclass(eq=False)
class Vote:
    transaction: Transaction
    commit: bool | None = None


class Participant(TxnProducer):
    def script(self) -> Script[None]:
        try:
            if (yield from self._come_back()):
                yield from self._settle()
            while self.history.wants_more(self.transactional_id):
                if not (yield from self._take_part()):
                    return
                yield self.rng.randrange(200)
        except Fenced:
            self.trace("is fenced")

    def _come_back(self) -> Script[bool]:
        """Whether a transaction of this id was found open."""
        yield from self.initialise(two_phase=True, keep_prepared=True)
        return self.transactions.prepared.producer_id >= 0

    def _settle(self) -> Script[None]:
        vote = self.history.votes[self.transactional_id]
        if vote.commit is None:
            vote.commit = False
        self.transaction, self._is_begun = vote.transaction, True
        yield from self.end(vote.commit)

    def _take_part(self) -> Script[bool]:
        """One transaction. False when this instance dies with it open."""
        vote = self.history.votes[self.transactional_id] = Vote(self.begin())
        self.history.past_votes.append(vote)
        try:
            yield from self._fill(vote.transaction, 0)
        except MustAbort:
            vote.commit = False
            yield from self.give_up()
            return True
        if self.chance(150):
            return False
        vote.commit = self.chance(700)
        if self.chance(150):
            return False
        yield from self.end(vote.commit)
        return True


def init_keeping(history: History, transactional_id: str, holder: str) -> Call:
    def witness(response: Any) -> None:
        if response.error_code == 0:
            identity = Identity(response.producer_id, response.producer_epoch)
            history.model.given_identity(transactional_id, identity, is_new=True, holder=holder)

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1_000, enable2_pc=True, keep_prepared_txn=True
    )
    return Call(ApiKey.INIT_PRODUCER_ID, PARTICIPANT.init, request, on_answered=witness, may_haunt=True)


def settle_all(history: History) -> None:
    """What was left open when everybody has gone: as voted, or by force."""
    for transactional_id, vote in history.votes.items():
        answer = history.network.ask(init_keeping(history, transactional_id, "operator"))
        if answer.error_code:
            history.model.violated("nobody-waits", f"{transactional_id} cannot be taken over: {answer.error_code}")
        elif answer.ongoing_txn_producer_id >= 0 and vote.commit is not None:
            _end(history, transactional_id, Identity(answer.producer_id, answer.producer_epoch), vote)
        elif answer.ongoing_txn_producer_id >= 0:
            by_force = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1_000)
            history.ask(ApiKey.INIT_PRODUCER_ID, 5, by_force)


def _end(history: History, transactional_id: str, identity: Identity, vote: Vote) -> None:
    arrived, answered = history.model.ending(vote.transaction, bool(vote.commit), "operator")
    message = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=bool(vote.commit),
    )
    answer = history.network.ask(Call(ApiKey.END_TXN, PARTICIPANT.end, message, arrived, answered))
    if answer.error_code:
        history.model.violated("nobody-waits", f"{transactional_id} cannot be settled: {answer.error_code}")
