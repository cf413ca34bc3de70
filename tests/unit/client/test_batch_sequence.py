"""The order of a partition's batches, driven by answers and by a time that the tests make up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from oncelog.client.batch_sequence import BatchSequence, Delivery, Mode, Need, Pending
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.encoded_batch import EncodedBatch, split_batches
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError, TimedOut
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.batch import Record, build_batch, read_header
from oncelog.protocol.messages.produce import PartitionProduceResponse
from tests.unit.client.simulated_partition import SimulatedLog

TP = TopicPartition("t", 0)
ME = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
BACKOFF_MS = 100


def batch(number: int) -> EncodedBatch:
    return split_batches(build_batch([Record(0, 0, None, b"%d" % number)], timestamp_ms=0))[0]


class Bench:
    """One sequence, a clock, and the log of a leader."""

    def __init__(self, mode: Mode = Mode.GIVEN, **options: Any) -> None:
        self.now_s = 100.0
        self.log = SimulatedLog()
        self.outcomes: dict[int, Delivery | KafkaError] = {}
        self.rng = random.Random(7)
        self.sequence = BatchSequence(TP, ME, Backoff(BACKOFF_MS, 1_000, self.rng), mode=mode, **options)

    def append(self, *numbers: int, timeout_ms: float = 10_000) -> None:
        for number in numbers:
            deadline = Deadline(timeout_ms, lambda: self.now_s)
            self.sequence.append(batch(number), deadline, lambda outcome, n=number: self.outcomes.update({n: outcome}))

    def need(self) -> Need:
        return self.sequence.advance(self.now_s)

    def deliver(self, pending: Pending) -> None:
        code, offset = self.log.append(pending.data)
        self.sequence.settle(pending, PartitionProduceResponse(error_code=code, base_offset=offset))

    def refuse(self, pending: Pending, code: ErrorCode) -> None:
        self.sequence.settle(pending, PartitionProduceResponse(error_code=code))


def test_five_are_on_their_way_and_the_next_go_when_one_is_acknowledged() -> None:
    bench = Bench()
    bench.append(*range(7))
    assert bench.need() is Need.LEADER
    first = bench.sequence.take()
    assert [read_header(pending.data).base_sequence for pending in first] == [0, 1, 2, 3, 4]
    assert bench.need() is Need.ANSWERS
    assert not bench.sequence.has_room
    bench.deliver(first[0])
    assert [read_header(pending.data).base_sequence for pending in bench.sequence.take()] == [5]
    assert bench.outcomes == {0: Delivery(TP, 0, -1, 1)}


def test_after_a_failure_nothing_is_sent_until_all_have_settled_and_then_one_at_a_time() -> None:
    bench = Bench()
    bench.append(*range(4))
    first = bench.sequence.take()
    bench.sequence.settle(first[1], ConnectionLost("gone"))
    assert bench.sequence.moved
    assert (bench.need(), bench.sequence.take()) == (Need.ANSWERS, [])
    for pending in (first[0], first[2], first[3]):
        bench.sequence.settle(pending, ConnectionLost("gone"))
    assert bench.need() is Need.TIME
    assert 0.8 * BACKOFF_MS <= (bench.sequence.resume_at_s - bench.now_s) * 1000 <= 1.2 * BACKOFF_MS
    bench.now_s = bench.sequence.resume_at_s
    for sequence in range(4):
        assert bench.need() is Need.LEADER
        (alone,) = bench.sequence.take()
        assert read_header(alone.data).base_sequence == sequence
        assert bench.need() is (Need.ANSWERS if sequence < 3 else Need.NOTHING)
        bench.deliver(alone)
    assert bench.log.values == [b"0", b"1", b"2", b"3"]
    assert bench.need() is Need.NOTHING


def test_a_transaction_that_is_completed_soon_is_waited_for_only_shortly() -> None:
    bench = Bench()
    bench.append(0)
    bench.refuse(*bench.sequence.take(), ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.need() is Need.TIME
    assert bench.sequence.resume_at_s - bench.now_s < 0.01


def test_a_deadline_gives_up_a_batch_that_was_never_sent() -> None:
    bench = Bench()
    bench.append(0, 1, timeout_ms=500)
    assert bench.need() is Need.LEADER
    bench.now_s += 0.5
    bench.sequence.unreachable(TimedOut("no leader"))
    assert bench.need() is Need.NOTHING
    assert all(isinstance(outcome, TimedOut) for outcome in bench.outcomes.values())
    assert bench.sequence.broken is not None


@pytest.mark.parametrize(
    ("answers", "in_doubt"),
    [
        ([], False),
        ([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS], False),
        ([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_RECORD], False),
        ([ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND], True),
        ([ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS], True),
        ([ErrorCode.NETWORK_EXCEPTION, ErrorCode.INVALID_RECORD], True),
    ],
)
def test_a_batch_may_have_been_written_by_any_attempt_that_did_not_tell(
    answers: list[ErrorCode], in_doubt: bool
) -> None:
    """NOT_ENOUGH_REPLICAS is said before anything is appended."""
    bench = Bench(Mode.IDEMPOTENT)
    bench.append(0)
    for code in answers:
        bench.now_s = max(bench.now_s, bench.sequence.resume_at_s)
        assert bench.need() is Need.LEADER
        bench.refuse(*bench.sequence.take(), code)
        bench.need()
    if not bench.outcomes:
        bench.now_s += 10
        bench.sequence.unreachable(ConnectionLost("gone"))
        bench.need()
    outcome = bench.outcomes[0]
    assert isinstance(outcome, KafkaError)
    assert outcome.in_doubt is in_doubt


def test_a_leader_that_is_not_found_leaves_a_batch_on_its_way_to_its_answer() -> None:
    bench = Bench(in_flight_max=1)
    bench.append(0, 1)
    (first,) = bench.sequence.take()
    bench.sequence.unreachable(TimedOut("no leader"))
    assert bench.need() is Need.ANSWERS
    bench.deliver(first)
    bench.now_s += 1
    assert bench.need() is Need.TIME
    bench.now_s += 1
    assert bench.need() is Need.LEADER
    assert bench.outcomes == {0: Delivery(TP, 0, -1, 1)}


def test_the_pause_does_not_go_beyond_the_deadline_of_the_oldest_batch() -> None:
    bench = Bench()
    bench.append(0, timeout_ms=30)
    bench.refuse(*bench.sequence.take(), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert bench.need() is Need.TIME
    assert bench.sequence.resume_at_s == pytest.approx(bench.now_s + 0.03)


def test_a_sequence_that_lacks_an_identity_says_so_and_numbers_from_0_under_the_new_one() -> None:
    bench = Bench(Mode.IDEMPOTENT, renewable=True)
    bench.sequence.identity = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(32766))
    bench.append(0, 1)
    first = bench.sequence.take()
    bench.refuse(first[0], ErrorCode.MESSAGE_TOO_LARGE)
    bench.refuse(first[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.need() is Need.IDENTITY
    assert isinstance(bench.outcomes[0], KafkaError)
    bench.sequence.renumber(ProducerIdAndEpoch(ProducerId(2), ProducerEpoch(0)))
    assert bench.need() is Need.LEADER
    (again,) = bench.sequence.take()
    header = read_header(again.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2, 0, 0)


def test_what_comes_after_the_end_is_settled_and_told_to_nobody() -> None:
    bench = Bench()
    bench.append(0, 1)
    first = bench.sequence.take()
    bench.sequence.close(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "closed"))
    outcomes = dict(bench.outcomes)
    assert len(outcomes) == 2
    for pending in first:
        bench.deliver(pending)
    assert bench.outcomes == outcomes
    bench.sequence.restart(ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(1)))
    bench.append(2)
    bench.deliver(*bench.sequence.take())
    assert isinstance(bench.outcomes[2], Delivery)


@pytest.mark.parametrize("mode", [Mode.GIVEN, Mode.IDEMPOTENT])
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_doubled_or_reordered(seed: int, mode: Mode) -> None:
    """Requests and answers are lost at random, and answers come in any order that connections allow."""
    bench = Bench(mode)
    bench.rng.seed(seed)
    bench.append(*range(30), timeout_ms=10_000_000)
    on_their_way: list[Pending] = []
    while (need := bench.need()) is not Need.NOTHING or on_their_way:
        if need is Need.TIME:
            bench.now_s = bench.sequence.resume_at_s
        on_their_way += bench.sequence.take() if need is Need.LEADER else []
        while on_their_way and bench.rng.random() < 0.6:
            pending = on_their_way.pop(0)
            accident = bench.rng.choice(["none"] * 5 + ["request", "answer", "refused"])
            if accident == "refused":
                bench.refuse(pending, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif accident == "none":
                bench.deliver(pending)
            else:
                # The connection broke: what was sent behind this one has arrived or not, but in order.
                arrived = bench.rng.randrange(len(on_their_way) + 1)
                written = ([pending] if accident == "answer" else []) + on_their_way[:arrived]
                for one in written:
                    bench.log.append(one.data)
                for one in [pending, *on_their_way]:
                    bench.sequence.settle(one, ConnectionLost("gone"))
                on_their_way.clear()
    assert bench.log.values == [b"%d" % number for number in range(30)]
    assert [outcome.base_offset for _, outcome in sorted(bench.outcomes.items())] == list(range(30))  # type: ignore[union-attr]
