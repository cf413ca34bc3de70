"""A stream of batches to one partition: each once and in order, whatever happens to requests and answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from oncelog.client.batch_sequence import IN_FLIGHT_MAX, Delivery, Mode
from oncelog.client.cluster import Cluster
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch, split_batches
from oncelog.client.errors import ErrorCode, IllegalState, KafkaError, TimedOut
from oncelog.client.partition_stream import PartitionStream
from oncelog.client.produce_channel import ProduceChannel
from oncelog.core.ids import SEQUENCE_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.batch import Record, build_batch
from tests.unit.client.simulated_partition import SimulatedChannel, SimulatedCluster, SimulatedLog

TP = TopicPartition("t", 0)
ME = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
NOBODY = ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(-1))
RETRIABLE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.CORRUPT_MESSAGE,
]
ACCIDENTS: list[Any] = ["ok"] * 6 + ["lost request", "lost answer", *RETRIABLE]


def batch(number: int, count: int = 2) -> EncodedBatch:
    raw = build_batch([Record(i, 0, None, b"%d.%d" % (number, i)) for i in range(count)], timestamp_ms=0)
    return split_batches(raw)[0]


def values(numbers: range | list[int], count: int = 2) -> list[bytes]:
    return [b"%d.%d" % (number, i) for number in numbers for i in range(count)]


class World:
    def __init__(self, seed: int = 0, accidents: list[Any] | None = None, *, reachable: bool = True) -> None:
        draw = random.Random(seed)
        self.log = SimulatedLog()
        self.cluster = SimulatedCluster(draw, reachable=reachable)
        self.channel = SimulatedChannel(self.log, draw, accidents or ["ok"])

    def stream(self, mode: Mode = Mode.GIVEN, identity: ProducerIdAndEpoch = ME, **options: Any) -> PartitionStream:
        cluster, channel = cast(Cluster, self.cluster), cast(ProduceChannel, self.channel)
        return PartitionStream(cluster, channel, TP, identity, mode=mode, **options)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


def append(stream: PartitionStream, one: EncodedBatch, deadline: Deadline) -> asyncio.Future[Delivery]:
    future: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def delivered(outcome: Delivery | KafkaError) -> None:
        if isinstance(outcome, KafkaError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    stream.append(one, deadline, delivered)
    return future


async def deliver(stream: PartitionStream, count: int, timeout_ms: float = 10_000) -> list[Delivery | BaseException]:
    futures = [append(stream, batch(number), Deadline(timeout_ms)) for number in range(count)]
    return await asyncio.gather(*futures, return_exceptions=True)


@pytest.mark.parametrize("mode", [Mode.GIVEN, Mode.IDEMPOTENT])
@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_doubled_or_reordered_by_accidents(seed: int, mode: Mode) -> None:
    world = World(seed, ACCIDENTS)
    outcomes = run(deliver(world.stream(mode), 40))
    assert world.log.values == values(range(40))
    assert [outcome.base_offset for outcome in outcomes] == [2 * number for number in range(40)]


def test_batches_are_pipelined_up_to_the_bound() -> None:
    world = World()
    run(deliver(world.stream(), 40))
    assert world.channel.in_flight_max == IN_FLIGHT_MAX
    assert world.channel.sent == 40


def test_one_in_flight_sends_one_after_the_other() -> None:
    world = World(3, ACCIDENTS)
    run(deliver(world.stream(in_flight_max=1), 10))
    assert world.channel.in_flight_max == 1
    assert world.log.values == values(range(10))


def test_a_lost_leader_is_looked_for_again() -> None:
    world = World(1, ["ok", ErrorCode.NOT_LEADER_OR_FOLLOWER])
    run(deliver(world.stream(), 5))
    assert world.cluster.forgotten > 0


def test_a_refused_batch_breaks_a_stream_with_somebody_elses_identity() -> None:
    async def scenario() -> None:
        world = World(0, [ErrorCode.INVALID_PRODUCER_EPOCH])
        stream = world.stream()
        outcomes = await deliver(stream, 8)
        assert all(isinstance(outcome, KafkaError) and outcome.code == 47 for outcome in outcomes)
        later = append(stream, batch(9), Deadline(1000))
        assert later.exception() is stream.sequence.broken
        await stream.idle()
        stream.sequence.restart(ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(1)))
        world.channel._accidents = ["ok"]
        await append(stream, batch(10), Deadline(1000))
        assert world.log.values == values([10])

    run(scenario())


def test_an_idempotent_stream_goes_on_after_a_refused_batch_under_a_new_epoch() -> None:
    class OneTooLarge(SimulatedChannel):
        def _answer(self, connection: Any, data: bytes, accident: Any) -> Any:
            too_large = b"3.0" in data
            return super()._answer(connection, data, ErrorCode.MESSAGE_TOO_LARGE if too_large else accident)

    async def scenario() -> None:
        world = World()
        world.channel = OneTooLarge(world.log, random.Random(0), ["ok"])
        stream = world.stream(Mode.IDEMPOTENT)
        outcomes = await deliver(stream, 8)
        failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
        assert failed == [3]
        assert world.log.values == values([0, 1, 2, 4, 5, 6, 7])
        assert stream.sequence.identity.epoch == 1

    run(scenario())


class TooFewReplicas(SimulatedChannel):
    """Writes the first batches, but does not say so; refuses batch 3."""

    def _answer(self, connection: Any, data: bytes, accident: Any) -> Any:
        if b"3.0" in data:
            accident = ErrorCode.MESSAGE_TOO_LARGE
        answer = super()._answer(connection, data, accident)
        if self.sent <= IN_FLIGHT_MAX and not answer.error_code:
            answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return answer


@pytest.mark.parametrize("times_ms", [[10_000] * 5, [0, 10_000, 10_000], [0, 0, 10_000]])
def test_batches_that_may_be_written_keep_their_numbers_when_another_is_given_up(times_ms: list[int]) -> None:
    async def scenario() -> None:
        world = World()
        world.channel = TooFewReplicas(world.log, random.Random(0), ["ok"])
        stream = world.stream(Mode.IDEMPOTENT)
        futures = [append(stream, batch(number), Deadline(time_ms)) for number, time_ms in enumerate(times_ms)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        in_vain = [number for number, time_ms in enumerate(times_ms) if time_ms == 0 or number == 3]
        failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
        assert failed == in_vain
        assert world.log.values == values([number for number in range(len(times_ms)) if number != 3])

    run(scenario())


def test_an_idempotent_stream_whose_epochs_are_used_up_asks_for_a_new_producer_id() -> None:
    async def new_identity() -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(ProducerId(2), ProducerEpoch(0))

    async def scenario() -> None:
        world = World(0, [ErrorCode.MESSAGE_TOO_LARGE])
        last = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(32766))
        stream = world.stream(Mode.IDEMPOTENT, last, new_identity=new_identity)
        await deliver(stream, 1)
        assert stream.sequence.identity == (2, 0)

    run(scenario())


def test_a_gap_that_the_stream_did_not_cause_is_an_error_of_the_oldest_batch() -> None:
    async def scenario() -> None:
        world = World()
        outcomes = await deliver(world.stream(base_sequence=100), 3)
        assert all(isinstance(o, KafkaError) and o.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER for o in outcomes)
        assert world.log.values == []

    run(scenario())


def test_an_idempotent_stream_mends_a_gap_with_a_new_epoch_and_loses_nothing() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.stream(Mode.IDEMPOTENT, base_sequence=100)
        await deliver(stream, 6)
        assert world.log.values == values(range(6))
        assert stream.sequence.identity.epoch == 1

    run(scenario())


def test_a_gap_that_does_not_close_is_given_up_in_time() -> None:
    world = World(0, [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
    outcomes = run(deliver(world.stream(Mode.IDEMPOTENT), 2, timeout_ms=60))
    assert all(isinstance(outcome, TimedOut) for outcome in outcomes)


def test_without_a_leader_batches_are_given_up_in_time() -> None:
    outcomes = run(deliver(World(reachable=False).stream(), 3, timeout_ms=50))
    assert all(isinstance(outcome, TimedOut) for outcome in outcomes)


@pytest.mark.parametrize("mode", list(Mode))
def test_without_a_leader_after_a_first_attempt_batches_are_given_up_in_time(mode: Mode) -> None:
    class LeaderGoes(SimulatedChannel):
        def _answer(self, connection: Any, data: bytes, accident: Any) -> Any:
            world.cluster.reachable = False
            return super()._answer(connection, data, accident)

    async def scenario() -> list[Delivery | BaseException]:
        world.channel = LeaderGoes(world.log, random.Random(0), [ErrorCode.NOT_LEADER_OR_FOLLOWER])
        return await deliver(world.stream(mode), 3, timeout_ms=50)

    world = World()
    assert all(isinstance(outcome, TimedOut) for outcome in run(scenario()))


def test_a_broker_that_never_accepts_does_not_hold_a_batch_for_ever() -> None:
    outcomes = run(deliver(World(0, [ErrorCode.NOT_ENOUGH_REPLICAS]).stream(), 2, timeout_ms=80))
    assert all(isinstance(outcome, TimedOut) and "NOT_ENOUGH_REPLICAS" in str(outcome) for outcome in outcomes)


def test_the_number_of_retries_is_bounded_when_asked_for() -> None:
    world = World(0, [ErrorCode.NOT_ENOUGH_REPLICAS])
    run(deliver(world.stream(Mode.PLAIN, NOBODY, retries=2), 1))
    assert world.channel.sent == 3


def test_plain_streams_deliver_at_least_once() -> None:
    world = World(5, ACCIDENTS)
    run(deliver(world.stream(Mode.PLAIN, NOBODY, in_flight_max=1), 30))
    assert set(world.log.values) == set(values(range(30)))


def test_sequences_wrap_around() -> None:
    async def scenario() -> None:
        stream = World().stream(base_sequence=SEQUENCE_MAX)
        future = append(stream, batch(0), Deadline(1000))
        assert stream.sequence.next_sequence == 1
        await asyncio.wait([future])

    run(scenario())


def test_closing_gives_up_what_is_pending_at_once() -> None:
    async def scenario() -> None:
        stream = World(reachable=False).stream()
        future = append(stream, batch(0), Deadline(60_000))
        await asyncio.sleep(0)
        stream.close(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "closed"))
        assert isinstance(future.exception(), KafkaError)

    run(scenario())


def test_a_new_epoch_cannot_begin_while_batches_are_pending() -> None:
    async def scenario() -> None:
        stream = World().stream()
        future = append(stream, batch(0), Deadline(1000))
        with pytest.raises(IllegalState):
            stream.sequence.restart(ME)
        await future

    run(scenario())
