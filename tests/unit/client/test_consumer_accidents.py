"""Consumers in front of a broker that misbehaves: every record once to a consumer that lives, and no endless wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import (
    AbortableError,
    Admin,
    CommitFailed,
    Consumer,
    ConsumerRecord,
    KafkaError,
    NewTopic,
    Producer,
    TopicPartition,
    group_member,
)
from oncelog.core.errors import RETRIABLE, ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.schema import Message
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.unit.client.client_factory import client_factory, drain, numbers
from tests.waiting import wait_until

COUNT = 400
READING = [
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.FIND_COORDINATOR,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
]
LOSSES = [Kind.LOSE_REQUEST, Kind.LOSE_ANSWER, Kind.HALF_ANSWER, Kind.DELAY, Kind.DOUBLE]


@pytest.fixture(scope="module")
def full_topic(module_admin: Admin, oncelog_broker: Any) -> str:
    module_admin.create_topics([NewTopic("full-topic-2", 2, 1)])
    with Producer({"bootstrap.servers": oncelog_broker.bootstrap_servers, "batch.size": 200}) as producer:
        for number in range(COUNT):
            producer.send("full-topic-2", str(number), partition=number % 2)
    return "full-topic-2"


@pytest.fixture
def consumer(chaos: Chaos) -> Iterator[Callable[..., Consumer]]:
    settings = {
        "bootstrap.servers": chaos.bootstrap_servers,
        "request.timeout.ms": 2_000,
        "default.api.timeout.ms": 30_000,
        "retry.backoff.ms": 2,
        "retry.backoff.max.ms": 20,
        "heartbeat.interval.ms": 30,
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": 1000,
        "fetch.max.wait.ms": 50,
    }
    with client_factory(Consumer, settings) as make:
        yield make
        chaos.accident = lambda key, request: None


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("key", READING, ids=lambda key: key.name)
def test_any_single_accident_with_any_request_leaves_every_record_once(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], key: ApiKey, kind: Kind
) -> None:
    chaos.once(key, Accident(kind))
    client = consumer(group_id=unique("group"), auto_commit_interval_ms=20)
    client.subscribe([full_topic])
    assert numbers(drain(client, COUNT)) == list(range(COUNT))
    deadline = time.monotonic() + 60
    while not chaos.happened[kind] and time.monotonic() < deadline:
        client.poll(20)
    assert chaos.happened[kind] == 1


@pytest.mark.parametrize("seed", range(3))
def test_many_random_accidents_leave_every_record_once(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], seed: int
) -> None:
    draw = random.Random(seed)
    codes = [6, 7, 14, 15, 16]

    def accident(key: ApiKey, request: Message) -> Accident | None:
        if key not in READING or draw.random() > 0.25:
            return None
        if isinstance(request, JoinGroupRequest) and not request.member_id:
            # A coordinator waits for a member whose id it has given away, lost answer or not: for session.timeout.ms.
            return Accident(Kind.LOSE_REQUEST)
        if draw.random() < 0.3 and key not in (ApiKey.API_VERSIONS, ApiKey.SYNC_GROUP):
            return Accident(Kind.REFUSE, draw.choice(codes))
        return Accident(draw.choice(LOSSES), delay_s=0.01)

    chaos.accident = accident
    client = consumer(group_id=unique("group"), enable_auto_commit=False)
    client.subscribe([full_topic])
    assert numbers(drain(client, COUNT)) == list(range(COUNT))


def test_leaders_and_coordinators_that_move_are_followed(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str]
) -> None:
    client = consumer(group_id=unique("group"), enable_auto_commit=False, max_poll_records=20)
    client.subscribe([full_topic])
    seen: list[ConsumerRecord] = []
    deadline = time.monotonic() + 60
    moves = 0
    while len(seen) < COUNT and time.monotonic() < deadline:
        seen += client.poll(100)
        moves += 1
        chaos.leaders[TopicPartition(full_topic, moves % 2)] = 1 + moves % 2
        chaos.coordinator = 1 + (moves // 3) % 2
        client.commit()
    assert numbers(seen) == list(range(COUNT))


def test_a_broker_that_stops_answering_is_left_after_the_request_timeout(
    chaos: Chaos, consumer: Any, full_topic: str
) -> None:
    client = consumer()
    client.assign([TopicPartition(full_topic, 0), TopicPartition(full_topic, 1)])
    chaos.once(ApiKey.FETCH, Accident(Kind.HANG))
    assert numbers(drain(client, COUNT)) == list(range(COUNT))


def test_polls_are_bounded_while_nothing_answers(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str]
) -> None:
    client = consumer(group_id=unique("group"), default_api_timeout_ms=60_000)
    client.subscribe([full_topic])
    chaos.accident = lambda key, request: Accident(Kind.LOSE_REQUEST)
    started = time.monotonic()
    assert client.poll(300) == []
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("code", [22, 27])
def test_a_member_that_the_group_forgot_joins_again(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], code: int
) -> None:
    client = consumer(group_id=unique("group"), enable_auto_commit=False)
    client.subscribe([full_topic], on_revoked=lambda _: None, on_lost=lambda _: None)
    drain(client, 1)
    joins = chaos.seen[ApiKey.JOIN_GROUP]
    chaos.once(ApiKey.HEARTBEAT, Accident(Kind.REFUSE, code))
    deadline = time.monotonic() + 60
    while (chaos.seen[ApiKey.JOIN_GROUP] == joins or not client.assignment()) and time.monotonic() < deadline:
        client.poll(20)
    assert chaos.seen[ApiKey.JOIN_GROUP] > joins
    assert len(client.assignment()) == 2


def expel(module_admin: Admin, client: Consumer, successor: Consumer, topic: str) -> None:
    """As after a time-out of its session: a successor reads everything, commits, and leaves the group empty."""
    member = client.group_metadata()
    module_admin.remove_members(member.group_id, [member.member_id])
    successor.subscribe([topic])
    drain(successor, COUNT)
    successor.commit()
    successor.close()


def test_a_member_that_was_expelled_commits_neither_by_itself_nor_in_a_transaction(
    consumer: Any, full_topic: str, unique: Callable[[str], str], module_admin: Admin, servers: str
) -> None:
    group = unique("group")
    client = consumer(group_id=group, enable_auto_commit=False)
    client.subscribe([full_topic], on_lost=lambda _: None)
    drain(client, 1)
    expel(module_admin, client, consumer(group_id=group, enable_auto_commit=False), full_topic)
    done = module_admin.group_offsets(group)
    wait_until(lambda: client.core.member.lost)
    stale = {TopicPartition(full_topic, 0): 1}
    with pytest.raises(CommitFailed):
        client.commit(stale)
    with Producer({"bootstrap.servers": servers, "transactional.id": unique("tx")}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(AbortableError):
            producer.send_offsets_to_transaction(stale, client.group_metadata())
    assert module_admin.group_offsets(group) == done


def test_a_cooperative_member_that_is_expelled_while_it_joins_loses_what_it_holds(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], module_admin: Admin
) -> None:
    settings = {"group_id": unique("group"), "enable_auto_commit": False}
    client = consumer(**settings, partition_assignment_strategy="cooperative-sticky", max_poll_records=10)
    lost: list[TopicPartition] = []
    client.subscribe([full_topic], on_lost=lost.extend)
    drain(client, 10)
    member_id = client.group_metadata().member_id
    rebalances, expelled = [Accident(Kind.REFUSE, ErrorCode.REBALANCE_IN_PROGRESS)], False

    def accident(key: ApiKey, request: Message) -> Accident | None:
        if key is ApiKey.HEARTBEAT and rebalances:
            return rebalances.pop()
        joins_again = isinstance(request, JoinGroupRequest) and request.member_id == member_id
        return Accident(Kind.LOSE_REQUEST) if joins_again and not expelled else None

    chaos.accident = accident
    joins = chaos.seen[ApiKey.JOIN_GROUP]
    while chaos.seen[ApiKey.JOIN_GROUP] == joins:
        client.poll(10)
    expel(module_admin, client, consumer(**settings), full_topic)
    expelled = True
    deadline = time.monotonic() + 60
    while (not lost or not client.assignment()) and time.monotonic() < deadline:
        client.poll(10)
    assert sorted(lost) == [TopicPartition(full_topic, 0), TopicPartition(full_topic, 1)]
    assert [client.position(place) for place in sorted(lost)] == [COUNT // 2] * 2


def test_a_commit_that_the_end_of_the_consumer_cuts_off_is_no_success(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str]
) -> None:
    place = TopicPartition(full_topic, 0)
    client = consumer(group_id=unique("group"))
    client.assign([place])
    chaos.accident = lambda key, request: Accident(Kind.HANG) if key is ApiKey.OFFSET_COMMIT else None
    outcomes: list[BaseException | None] = []
    client.commit_async({place: 1}, outcomes.append)
    client.close()
    wait_until(lambda: bool(outcomes))
    assert outcomes[0] is not None


def test_a_reset_that_fails_is_tried_again(chaos: Chaos, consumer: Any, full_topic: str) -> None:
    place = TopicPartition(full_topic, 0)
    client = consumer(default_api_timeout_ms=300, request_timeout_ms=200)
    client.assign([place])
    client.seek(place, 10 * COUNT)
    refusal = Accident(Kind.REFUSE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    chaos.accident = lambda key, request: refusal if key is ApiKey.LIST_OFFSETS else None
    with pytest.raises(KafkaError):
        drain(client, 1)
    chaos.accident = lambda key, request: None
    assert drain(client, 1)[0].offset == 0


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.FETCH, ApiKey.OFFSET_FETCH])
def test_an_error_that_does_not_go_away_is_raised_by_poll(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], key: ApiKey
) -> None:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED if key is not ApiKey.FETCH else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code not in RETRIABLE
    chaos.accident = lambda seen, request: Accident(Kind.REFUSE, code) if seen is key else None
    client = consumer(group_id=unique("group"), enable_auto_commit=False)
    client.subscribe([full_topic])
    with pytest.raises(KafkaError) as caught:
        drain(client, COUNT + 1)
    assert caught.value.code is code


def test_closing_waits_only_a_while_for_a_coordinator_that_is_gone(
    chaos: Chaos, consumer: Any, full_topic: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "LEAVE_TIMEOUT_MS", 100)
    client = consumer(group_id=unique("group"), enable_auto_commit=False, default_api_timeout_ms=60_000)
    client.subscribe([full_topic])
    drain(client, 1)
    chaos.accident = lambda key, request: Accident(Kind.LOSE_REQUEST)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 30


def test_range_reads_follow_leaders_and_survive_accidents(chaos: Chaos, full_topic: str) -> None:
    from oncelog.client import ClientConfig, RangeReader
    from oncelog.client.consumer_records import iter_records

    draw = random.Random(5)
    chaos.accident = lambda key, request: (
        Accident(draw.choice(LOSSES), delay_s=0.01) if key is ApiKey.FETCH and draw.random() < 0.3 else None
    )
    config = ClientConfig(bootstrap_servers=chaos.bootstrap_servers, request_timeout_ms=2_000, retry_backoff_ms=2)
    with RangeReader(config, fetch_bytes=500) as reader:
        offsets = []
        for chunk in reader.read(full_topic, 0, 13, 187):
            chaos.leaders[TopicPartition(full_topic, 0)] = draw.choice([1, 2])
            offsets += [record.offset for record in iter_records(chunk)]
    assert offsets == list(range(13, 187))
