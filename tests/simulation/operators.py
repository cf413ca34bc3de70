"""People and machines that interfere: fencing, hanging transactions and their abort, markers that come late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from tests.simulation import wire
from tests.simulation.actors import Actor, Fenced, MustAbort, Script
from tests.simulation.network import LOST, Call
from tests.simulation.producers import RETRIABLE, TxnClient
from tests.simulation.wire import Identity, Place

if TYPE_CHECKING:
    from tests.simulation.history import History


class FencingAdmin(Actor):
    """`fenceProducers`: takes an id away from whoever has it."""

    def script(self) -> Script[None]:
        while self.history.in_trouble:
            yield self.rng.randrange(500, 6_000)
            transactional_id = self.rng.choice(self.history.transactional_ids)

            def witness(response: Any, transactional_id: str = transactional_id) -> None:
                if response.error_code == 0:
                    identity = Identity(response.producer_id, response.producer_epoch)
                    self.model.given_identity(transactional_id, identity, is_new=True, holder=self.name)
                    self.model.next_grant()

            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1_000)
            self.trace(f"fences {transactional_id}")
            yield from self.call(Call(ApiKey.INIT_PRODUCER_ID, 4, request, on_answered=witness))


class TopicDeleter(Actor):
    """Deletes a topic that transactions write to."""

    def script(self) -> Script[None]:
        yield self.rng.randrange(500, 5_000)
        for topic, _ in self.history.doomed:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=1_000)
            self.trace(f"deletes {topic}")
            yield from self.retry(
                lambda: Call(ApiKey.DELETE_TOPICS, 6, request),  # noqa: B023  it is used up before the next turn
                lambda answer: {answer.responses[0].error_code},
                RETRIABLE,
            )


class RecordDeleter(Actor):
    """Deletes the beginning of partitions: up to some offset, or all that is there."""

    def script(self) -> Script[None]:
        while self.history.in_trouble:
            yield self.rng.randrange(200, 4_000)
            place = self.rng.choice(self.history.places)
            end = self.history.onlooker.positions[place]
            offset = end if self.chance(400) else self.rng.randrange(end + 1)
            arrived, answered = self.model.removals.deleting(place, offset)
            self.trace(f"deletes {place} up to {offset}")
            call = Call(ApiKey.DELETE_RECORDS, 2, wire.delete_records(place, offset), arrived, answered)
            answer = yield from self.call(call)
            if answer is not LOST and (code := answer.topics[0].partitions[0].error_code) not in {0, *RETRIABLE}:
                self.model.violated("start-moves-on", f"{place} cannot be deleted up to {offset}: {code}")


class LateProducer(TxnClient):
    """Sends a batch after the end of its transaction, as one that was held up in a buffer (KAFKA-17754).

    Verification must keep it out. Where that is switched off it opens a transaction that no coordinator knows of.
    """

    def script(self) -> Script[None]:
        try:
            yield from self.initialise()
            transaction = self.begin()
            place = self.rng.choice(self.history.output_places)
            yield from self.write([self.compose(place, [f"{self.name}:in-time"], transaction)])
            yield from self.end(commit=self.chance(500))
            late = self.compose(self.rng.choice(self.history.output_places), [f"{self.name}:late"], None, hidden=True)
            call = self.produce_call(self.enqueue(late).take())
            call.may_haunt = False
            if not self.history.plan.verification:
                self.model.undecided.add(self.identity.producer_id)
            answer = yield from self.call(call)
        except (Fenced, MustAbort):
            return
        if answer is LOST:
            return
        code = wire.produce_answers(answer, self.history.topic_ids)[late.place].error_code
        self.trace(f"late batch to {late.place}: {code}")
        # A late repetition of AddPartitionsToTxn opens a transaction, which the batch may join: that one times out.
        if code == 0 and self.history.plan.verification and not self.history.plan.weather.haunt:
            self.model.violated("committed-only", f"{self.name}: a batch without a transaction was accepted")


class MarkerGhost(Actor):
    """Repeats the markers of ended TV2 transactions, as a coordinator's request that was held up would."""

    def script(self) -> Script[None]:
        while self.history.in_trouble:
            yield self.rng.randrange(100, 1_500)
            seen = [
                (place, record)
                for place, records in self.history.onlooker.view.items()
                for record in records
                if record.marker is not None and self.history.speaks_tv2_only(record.producer_id)
            ]
            if not seen:
                continue
            place, record = self.rng.choice(seen[-6:])
            if record.marker is not None:
                self.trace(f"repeats {record} of {place}")
                yield from self.call(
                    Call(
                        ApiKey.WRITE_TXN_MARKERS,
                        2,
                        wire.markers(
                            place,
                            Identity(record.producer_id, record.epoch),
                            record.marker.commit,
                            record.marker.coordinator_epoch,
                            2,
                        ),
                    )
                )


def find_hanging(history: History) -> list[tuple[Place, Any]]:
    """Open transactions that no coordinator knows of, as `kafka-transactions find-hanging` looks for them."""
    hanging = []
    for place in history.places:
        request = DescribeProducersRequest(topics=[TopicRequest(name=place[0], partition_indexes=[place[1]])])
        answer = history.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)
        for producer in answer.topics[0].partitions[0].active_producers:
            if producer.current_txn_start_offset < 0:
                continue
            known = history.ask(
                ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest(producer_id_filters=[producer.producer_id])
            )
            states = {entry.transaction_state for entry in known.transaction_states}
            if not states & {"Ongoing", "PrepareCommit", "PrepareAbort"}:
                hanging.append((place, producer))
    return hanging


def abort_hanging(history: History) -> None:
    for place, producer in find_hanging(history):
        history.model.undecided.add(producer.producer_id)
        identity = Identity(producer.producer_id, producer.producer_epoch)
        request = wire.markers(place, identity, False, max(0, producer.coordinator_epoch), 0)
        answer = history.ask(ApiKey.WRITE_TXN_MARKERS, 1, request)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code:
            history.model.violated("lso-moves-on", f"a hanging transaction of {place} cannot be aborted: {code}")
