"""Consumers on a real broker: positions, isolation, groups, commits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import (
    Admin,
    AsyncConsumer,
    CommitFailed,
    ConfigurationError,
    Consumer,
    ConsumerRecord,
    IllegalState,
    KafkaError,
    NewTopic,
    Producer,
    TimedOut,
    TopicPartition,
    consumer_fetcher,
)
from oncelog.client.encoded_batch import EncodedBatch, split_batches
from oncelog.client.errors import ErrorCode
from oncelog.client.group_member import GroupMember
from oncelog.client.offset_lookup import OffsetLookup
from oncelog.protocol.batch import HEADER_BYTES, Record, build_batch, crc_of
from oncelog.testing import broker
from tests.unit.client.client_factory import client_factory, drain, numbers
from tests.waiting import wait_until

COUNT = 200


@pytest.fixture(scope="module")
def full_topic(module_admin: Admin, oncelog_broker: Any) -> str:
    """Two partitions with 100 records each, values 0 to 199, timestamps 1000 times that."""
    module_admin.create_topics([NewTopic("full-topic", 2, 1)])
    with Producer({"bootstrap.servers": oncelog_broker.bootstrap_servers}) as producer:
        for number in range(COUNT):
            producer.send(
                "full-topic",
                str(number),
                key="k",
                partition=number % 2,
                timestamp_ms=1000 * number,
                headers={"n": b"1"},
            )
    return "full-topic"


@pytest.fixture
def consumer(servers: str) -> Iterator[Callable[..., Consumer]]:
    with client_factory(Consumer, {"bootstrap.servers": servers, "heartbeat.interval.ms": 100}) as make:
        yield make


def both(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def test_assigned_partitions_are_read_in_order_with_all_fields(consumer: Any, full_topic: str) -> None:
    client = consumer(auto_offset_reset="earliest")
    client.assign(both(full_topic))
    records = drain(client, COUNT)
    assert numbers(records) == list(range(COUNT))
    first = next(record for record in records if record.partition == 1)
    assert first[:8] == (full_topic, 1, 0, 1000, 0, b"k", b"1", (("n", b"1"),))
    for partition in (0, 1):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(100))


def test_a_poll_returns_no_more_than_asked_for_and_loses_nothing(consumer: Any, full_topic: str) -> None:
    client = consumer(auto_offset_reset="earliest", max_poll_records=7)
    client.assign(both(full_topic))
    seen: list[ConsumerRecord] = []
    deadline = time.monotonic() + 60
    while len(seen) < COUNT and time.monotonic() < deadline:
        records = client.poll(200)
        assert len(records) <= 7
        seen += records
    assert numbers(seen) == list(range(COUNT))


def test_columns_hold_the_same_records(consumer: Any, full_topic: str) -> None:
    client = consumer(auto_offset_reset="earliest")
    client.assign(both(full_topic))
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < COUNT and time.monotonic() < deadline:
        values += client.poll_columns(200).column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(COUNT))


def test_columns_go_on_where_records_ended(consumer: Any, full_topic: str) -> None:
    client = consumer(auto_offset_reset="earliest", max_poll_records=30)
    client.assign([TopicPartition(full_topic, 0)])
    first = drain(client, 30)
    rest = client.poll_columns(30_000).column("offset").to_pylist()
    assert [record.offset for record in first] + rest == list(range(100))


def test_seeking_by_offset_time_beginning_and_end(consumer: Any, full_topic: str) -> None:
    client, (zero, one) = consumer(), both(full_topic)
    client.assign([zero])
    client.seek(zero, 95)
    assert [record.offset for record in drain(client, 5)] == [95, 96, 97, 98, 99]
    client.seek_to_time(180_500, zero)
    assert client.position(zero) == 91
    client.seek_to_time(10**15, zero)
    assert client.position(zero) == 100
    client.seek_to_beginning(zero)
    assert client.position(zero) == 0
    client.seek_to_end()
    assert (client.position(zero), client.lag(zero), client.poll(50)) == (100, 0, [])
    assert client.beginning_offsets([one]) == {one: 0}
    assert client.end_offsets([one]) == {one: 100}
    with pytest.raises(IllegalState, match="not assigned"):
        client.seek(one, 0)


def test_paused_partitions_are_left_out_until_resumed(consumer: Any, full_topic: str) -> None:
    client, (zero, one) = consumer(auto_offset_reset="earliest"), both(full_topic)
    client.assign([zero, one])
    client.pause([zero])
    assert {record.partition for record in drain(client, 100)} == {1}
    assert client.paused() == {zero}
    client.resume([zero])
    assert {record.partition for record in drain(client, 100)} == {0}


def test_offsets_that_are_gone_follow_the_reset_policy(consumer: Any, full_topic: str) -> None:
    zero = TopicPartition(full_topic, 0)
    for policy, expected in (("earliest", 0), ("latest", 100)):
        client = consumer(auto_offset_reset=policy)
        client.assign([zero])
        client.seek(zero, 5_000)
        client.poll(300)
        assert client.position(zero) >= expected
    strict = consumer(auto_offset_reset="none")
    strict.assign([zero])
    strict.seek(zero, 5_000)
    with pytest.raises(KafkaError, match=r"auto\.offset\.reset=none") as caught:
        drain(strict, 1)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("where", "name"), [(GroupMember, "join"), (OffsetLookup, "find")])
def test_what_goes_wrong_beside_a_poll_is_raised_by_the_poll(
    consumer: Any, full_topic: str, unique: Any, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    async def broken(*_: Any) -> None:
        raise ValueError("not an error of Kafka's")

    monkeypatch.setattr(where, name, broken)
    client = consumer(group_id=unique("group"))
    client.subscribe([full_topic])
    with pytest.raises(ValueError, match="not an error of Kafka's"):
        drain(client, 1)


def test_an_offset_that_is_gone_is_asked_for_with_pauses(
    consumer: Any, full_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a policy only the application can go on. Until it does, the broker is not asked as fast as it answers."""
    asked: list[float] = []
    fetch = consumer_fetcher.fetch

    async def counted(*given: Any) -> Any:
        asked.append(time.monotonic())
        return await fetch(*given)

    monkeypatch.setattr(consumer_fetcher, "fetch", counted)
    strict = consumer(auto_offset_reset="none", retry_backoff_ms=100)
    place = TopicPartition(full_topic, 0)
    strict.assign([place])
    strict.seek(place, 10 * COUNT)
    deadline_s = time.monotonic() + 60
    while len(asked) < 4 and time.monotonic() < deadline_s:
        with pytest.raises(KafkaError, match="seek to where to go on"):
            drain(strict, 1)
    assert len(asked) == 4
    assert all(later - earlier > 0.05 for earlier, later in itertools.pairwise(asked))
    strict.seek(place, 0)
    wait_until(lambda: strict.poll(1_000))


def test_without_a_committed_offset_and_without_a_policy_there_is_an_error(
    consumer: Any, full_topic: str, unique: Any
) -> None:
    client = consumer(auto_offset_reset="none", group_id=unique("group"))
    client.subscribe([full_topic])
    with pytest.raises(KafkaError, match="no committed offset"):
        drain(client, 1)


def test_deserializers_are_applied(servers: str, full_topic: str) -> None:
    with Consumer(
        {"bootstrap.servers": servers, "auto.offset.reset": "earliest"},
        key_deserializer=lambda topic, raw: f"{topic}:{(raw or b'').decode()}",
        value_deserializer=lambda topic, raw: int(raw or b"0"),
    ) as client:
        client.assign([TopicPartition(full_topic, 0)])
        record = drain(client, 1)[0]
        assert (record.key, record.value) == ("full-topic:k", 0)


def test_a_record_that_cannot_be_deserialized_is_neither_skipped_nor_are_others(servers: str, full_topic: str) -> None:
    place, bad = TopicPartition(full_topic, 0), 5

    def deserialize(topic: str, raw: bytes | None) -> int:
        number = int(raw or b"0")
        if number == 2 * bad:
            raise ValueError("not this one")
        return number

    with Consumer(
        {"bootstrap.servers": servers, "auto.offset.reset": "earliest"}, value_deserializer=deserialize
    ) as client:
        client.assign([place])
        assert [record.offset for record in drain(client, 1)] == list(range(bad))
        for _ in range(2):
            with pytest.raises(ValueError, match="not this one"):
                drain(client, 1)
        assert client.position(place) == bad
        client.seek(place, bad + 1)
        assert drain(client, 1)[0].offset == bad + 1


@pytest.mark.parametrize("columns", [False, True])
def test_what_is_behind_a_malformed_record_is_not_skipped(
    consumer: Any, module_admin: Admin, servers: str, unique: Any, columns: bool
) -> None:
    name = unique("malformed")
    module_admin.create_topics([NewTopic(name, 1, 1)])
    place = TopicPartition(name, 0)
    with Producer({"bootstrap.servers": servers, "linger.ms": 0}) as producer:
        producer.send(name, "good").result(60)
        producer.core.sender.accumulator.append_encoded(place, malformed_batch())
        producer.flush()
        producer.send(name, "after").result(60)
    client = consumer(auto_offset_reset="earliest")
    client.assign([place])
    read = client.poll_columns if columns else client.poll
    deadline = time.monotonic() + 60
    failures = handed_out = 0
    while failures < 2 and time.monotonic() < deadline:
        try:
            handed_out += len(read(50))
        except KafkaError as error:
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            failures += 1
    assert (failures, handed_out, client.position(place)) == (2, 1, 1)
    client.seek(place, 2)
    assert drain(client, 1)[0].value == b"after"


def malformed_batch() -> EncodedBatch:
    """Its checksum is right, its value claims more bytes than there are."""
    batch = bytearray(build_batch([Record(0, 0, None, b"bad")], timestamp_ms=0))
    batch[HEADER_BYTES + 5] = 0x7E
    batch[17:21] = crc_of(bytes(batch), 0, len(batch)).to_bytes(4, "big")
    return split_batches(bytes(batch))[0]


# Isolation


def test_read_committed_waits_for_open_transactions_and_leaves_out_aborted_ones(
    consumer: Any, servers: str, topic: str, unique: Any
) -> None:
    committed = consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    uncommitted = consumer(auto_offset_reset="earliest")
    for client in (committed, uncommitted):
        client.assign(both(topic))
    with Producer({"bootstrap.servers": servers, "transactional.id": unique("txn"), "linger.ms": 0}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "1", partition=0)
        producer.flush()
        assert numbers(drain(uncommitted, 1)) == [1]
        assert committed.poll(100) == []
        assert committed.lag(TopicPartition(topic, 0)) == 0
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, "2", partition=0)
        assert numbers(drain(committed, 1)) == [2]
        assert numbers(drain(uncommitted, 1)) == [2]


# Groups


def test_a_group_goes_on_where_it_committed(consumer: Any, full_topic: str, unique: Any) -> None:
    settings = {"group_id": unique("group"), "auto_offset_reset": "earliest", "enable_auto_commit": False}
    first = consumer(**settings)
    first.subscribe([full_topic])
    drain(first, COUNT)
    first.commit({TopicPartition(full_topic, 0): 40, TopicPartition(full_topic, 1): 60})
    first.close()
    second = consumer(**settings)
    second.subscribe([full_topic])
    assert len(drain(second, 100)) == 100
    assert second.committed(both(full_topic))[TopicPartition(full_topic, 0)].offset == 40


def test_before_the_first_commit_the_committed_position_is_where_the_consumer_began(
    consumer: Any, servers: str, topic: str, unique: Any
) -> None:
    client = consumer(group_id=unique("group"), enable_auto_commit=False, auto_offset_reset="latest")
    client.subscribe([topic])
    deadline = time.monotonic() + 60
    while not client.assignment() and time.monotonic() < deadline:
        client.poll(10)
    assert client.position(TopicPartition(topic, 0)) == 0
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(5):
            producer.send(topic, str(number), partition=0)
    for _ in range(2):
        assert numbers(drain(client, 5)) == list(range(5))
        client.seek_to_committed()


def test_positions_are_committed_automatically_and_on_close(consumer: Any, full_topic: str, unique: Any) -> None:
    settings = {"group_id": unique("group"), "auto_offset_reset": "earliest", "auto_commit_interval_ms": 50}
    first = consumer(**settings)
    first.subscribe([full_topic])
    drain(first, COUNT)
    first.close()
    second = consumer(**settings)
    second.subscribe([full_topic])
    assert drain(second, 1, 0.5) == []


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_read_everything_once(
    consumer: Any, full_topic: str, unique: Any, strategy: str
) -> None:
    settings = {
        "group_id": unique("group"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "partition_assignment_strategy": strategy,
    }
    first, second = consumer(**settings), consumer(**settings)
    first.subscribe([full_topic], on_revoked=lambda _: first.commit())
    seen = drain(first, 1)
    second.subscribe([full_topic], on_revoked=lambda _: second.commit())
    deadline = time.monotonic() + 60
    shared = False
    while (len(seen) < COUNT or not shared) and time.monotonic() < deadline:
        seen += first.poll(50)
        seen += second.poll(50)
        shared = len(first.assignment()) == len(second.assignment()) == 1
    assert shared
    assert numbers(seen) == list(range(COUNT))
    first.close()
    deadline = time.monotonic() + 60
    while len(second.assignment()) < 2 and time.monotonic() < deadline:
        second.poll(50)
    assert second.assignment() == set(both(full_topic))


def test_callbacks_tell_what_comes_and_goes(consumer: Any, full_topic: str, unique: Any) -> None:
    events: list[tuple[str, int]] = []
    client = consumer(group_id=unique("group"))
    client.subscribe(
        [full_topic],
        on_assigned=lambda partitions: events.append(("assigned", len(partitions))),
        on_revoked=lambda partitions: events.append(("revoked", len(partitions))),
    )
    wait_until(lambda: client.poll(50) or client.assignment())
    client.unsubscribe()
    assert events == [("assigned", 2), ("revoked", 2)]
    assert client.assignment() == frozenset()


def test_a_callback_may_seek_before_the_first_record(consumer: Any, full_topic: str, unique: Any) -> None:
    client = consumer(group_id=unique("group"))
    client.subscribe([full_topic], on_assigned=lambda partitions: [client.seek(p, 99) for p in partitions])
    assert numbers(drain(client, 2)) == [198, 199]


def test_a_callback_that_raises_does_not_end_the_rebalances(
    consumer: Any, full_topic: str, topic: str, unique: Any
) -> None:
    client = consumer(group_id=unique("group"), auto_offset_reset="earliest")
    client.subscribe([full_topic], on_assigned=lambda partitions: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drain(client, 1)
    assert client.assignment() == frozenset(both(full_topic))
    client.subscribe([topic])
    wait_until(lambda: [client.poll(50)] and client.assignment() == frozenset(both(topic)))


def test_an_asynchronous_consumer_may_be_closed_twice_and_its_close_be_cancelled(
    servers: str, full_topic: str, unique: Any
) -> None:
    async def close_twice(cancel_after: int) -> int:
        client = AsyncConsumer({"bootstrap.servers": servers, "group.id": unique("group")})
        await client.subscribe([full_topic])
        while not client.assignment():
            await client.poll(50)
        closing = asyncio.create_task(client.close())
        for _ in range(cancel_after):
            await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await client.close()
        return len(asyncio.all_tasks()) - 1

    for cancel_after in (1, 2, 3, 5, 8, 13, 1000):
        assert asyncio.run(close_twice(cancel_after)) == 0


def test_a_poll_that_is_cancelled_within_a_callback_does_not_end_the_rebalances(
    servers: str, full_topic: str, topic: str, unique: Any
) -> None:
    settings = {"bootstrap.servers": servers, "group.id": unique("group"), "auto.offset.reset": "earliest"}

    async def read() -> None:
        async with AsyncConsumer(settings) as client:
            began = asyncio.Event()

            async def wait_for_ever(partitions: list[TopicPartition]) -> None:
                began.set()
                await asyncio.Event().wait()

            await client.subscribe([full_topic], on_assigned=wait_for_ever)
            polling = asyncio.create_task(client.poll(20_000))
            await began.wait()
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            await client.subscribe([topic])
            while client.assignment() != frozenset(both(topic)):
                await client.poll(50)

    asyncio.run(asyncio.wait_for(read(), 90))


def test_an_interrupt_behind_a_poll_that_has_records_leaves_them_to_the_next(
    consumer: Any, full_topic: str, unique: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = unique("group")
    client = consumer(group_id=group, auto_offset_reset="earliest")
    client.assign(both(full_topic))
    step = client._step

    def interrupted(*given: Any) -> None:
        step(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.poll(30_000)
    client.close()
    heir = consumer(group_id=group, auto_offset_reset="earliest")
    heir.assign(both(full_topic))
    assert numbers(drain(heir, COUNT)) == list(range(COUNT))


def test_a_closed_consumer_says_so(servers: str, full_topic: str, unique: Any) -> None:
    client = Consumer({"bootstrap.servers": servers, "group.id": unique("group")})
    client.close()
    calls: list[Callable[[], object]] = [
        lambda: client.poll(100),
        lambda: next(iter(client)),
        lambda: client.poll_columns(100),
        lambda: client.subscribe([full_topic]),
        lambda: client.assign(both(full_topic)),
    ]
    for call in calls:
        with pytest.raises(IllegalState, match="this consumer is closed"):
            call()


def test_a_poll_ends_when_another_thread_closes_the_consumer(servers: str, topic: str) -> None:
    client = Consumer({"bootstrap.servers": servers})
    client.assign(both(topic))
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(client.poll, 30_000)
        with pytest.raises(TimeoutError):
            polling.result(0.3)
        client.close()
        with pytest.raises(IllegalState, match="this consumer is closed"):
            polling.result(60)


def test_a_consumer_goes_on_after_a_broker_that_was_away_for_longer_than_a_call_may_take(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path / "data") as process:
        servers, topic = process.bootstrap_servers, process.create_topic()
        place = TopicPartition(topic, 0)
        with (
            Consumer({"bootstrap.servers": servers, "default.api.timeout.ms": 3_000, "retry.backoff.ms": 10}) as client,
            Producer({"bootstrap.servers": servers}) as producer,
        ):
            client.assign([place])
            client.seek(place, 0)
            producer.send(topic, "0").result(60)
            assert numbers(drain(client, 1)) == [0]
            process.kill()
            with pytest.raises(TimedOut, match="no broker of"):
                client.poll(60_000)
            process.start()
            producer.send(topic, "1").result(60)
            seen: list[int] = []
            while not seen:
                with contextlib.suppress(TimedOut):
                    seen = numbers(client.poll(1000))
            assert seen == [1]


def test_a_pattern_takes_all_topics_that_match(consumer: Any, module_admin: Admin, unique: Any) -> None:
    stem = unique("pattern")
    module_admin.create_topics([NewTopic(f"{stem}-a", 1, 1), NewTopic(f"{stem}-b", 1, 1)])
    client = consumer(group_id=unique("group"))
    client.subscribe(pattern=f"^{stem}-.*")
    wait_until(lambda: client.poll(100) or len(client.assignment()) == 2)
    assert {partition.topic for partition in client.assignment()} == {f"{stem}-a", f"{stem}-b"}


def test_new_partitions_are_noticed(consumer: Any, module_admin: Admin, unique: Any) -> None:
    name = unique("grows")
    module_admin.create_topics([NewTopic(name, 1, 1)])
    client = consumer(group_id=unique("group"), metadata_max_age_ms=100)
    client.subscribe([name])
    wait_until(lambda: client.poll(100) or client.assignment())
    module_admin.create_partitions({name: 3})
    wait_until(lambda: client.poll(100) or len(client.assignment()) == 3)


def test_a_topic_that_is_made_after_the_subscription_is_noticed(
    consumer: Any, module_admin: Admin, unique: Any
) -> None:
    """Soon, and not with the next look for new partitions of known topics: metadata.max.age.ms is five minutes."""
    name = unique("later")
    client = consumer(group_id=unique("group"), allow_auto_create_topics=False)
    assigned: list[list[TopicPartition]] = []
    client.subscribe([name], on_assigned=assigned.append)
    deadline = time.monotonic() + 60
    while not assigned and time.monotonic() < deadline:
        client.poll(10)
    assert assigned == [[]]
    module_admin.create_topics([NewTopic(name, 1, 1)])
    while not client.assignment() and time.monotonic() < deadline:
        client.poll(10)
    assert client.assignment() == {TopicPartition(name, 0)}


def test_a_pattern_does_not_come_back_after_it_was_given_up(consumer: Any, full_topic: str, unique: Any) -> None:
    client = consumer(group_id=unique("group"), metadata_max_age_ms=1)
    client.subscribe(pattern=full_topic)
    list_topics = client.core.admin.list_topics

    async def give_up_meanwhile(**options: Any) -> Any:
        found = await list_topics(**options)
        await client.core.leave("unsubscribed")
        return found

    client.core.admin.list_topics = give_up_meanwhile
    deadline = time.monotonic() + 60
    while client.core.pattern is not None and time.monotonic() < deadline:
        client.poll(10)
    client.poll(50)
    assert client.subscription() == frozenset()


def test_a_member_that_was_removed_loses_its_partitions_and_cannot_commit(
    consumer: Any, module_admin: Admin, full_topic: str, unique: Any
) -> None:
    group, events = unique("group"), []
    client = consumer(
        group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", heartbeat_interval_ms=5000
    )
    client.subscribe([full_topic], on_lost=lambda partitions: events.append(len(partitions)))
    drain(client, 1)
    (member,) = module_admin.describe_groups([group])[group].members
    assert sorted(member.partitions) == both(full_topic)
    module_admin.remove_members(group, [member.member_id])
    with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
        client.commit()
    assert numbers(drain(client, COUNT)) == list(range(COUNT))
    assert events == [2]


def test_a_member_that_does_not_poll_leaves_the_group(
    consumer: Any, module_admin: Admin, full_topic: str, unique: Any
) -> None:
    group = unique("group")
    client = consumer(group_id=group, max_poll_interval_ms=300, session_timeout_ms=6000, enable_auto_commit=False)
    client.subscribe([full_topic])
    wait_until(lambda: client.poll(20) or client.assignment())
    wait_until(lambda: not module_admin.describe_groups([group])[group].members)


# Refusals


def test_auto_commit_is_refused_by_name_in_a_consume_transform_produce_loop(consumer: Any, unique: Any) -> None:
    client = consumer(group_id=unique("group"))
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit"):
        client.group_metadata()


def test_calls_that_need_a_group_say_so(consumer: Any, full_topic: str) -> None:
    client = consumer()
    for call in (lambda: client.subscribe([full_topic]), client.group_metadata, client.commit):
        with pytest.raises(ConfigurationError, match=r"group\.id"):
            call()


def test_subscribing_and_assigning_do_not_mix(consumer: Any, full_topic: str, unique: Any) -> None:
    client = consumer(group_id=unique("group"))
    client.assign(both(full_topic))
    with pytest.raises(IllegalState, match="unsubscribe"):
        client.subscribe([full_topic])
    other = consumer(group_id=unique("group"))
    other.subscribe([full_topic])
    with pytest.raises(IllegalState, match="unsubscribe"):
        other.assign(both(full_topic))


# Asyncio


def test_the_asynchronous_consumer_iterates_commits_and_calls_back(servers: str, full_topic: str, unique: Any) -> None:
    async def scenario() -> None:
        events: list[str] = []

        async def assigned(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            events.append("assigned")

        config = {"bootstrap.servers": servers, "group.id": unique("group"), "auto.offset.reset": "earliest"}
        async with AsyncConsumer({**config, "enable.auto.commit": False}) as client:
            await client.subscribe([full_topic], on_assigned=assigned)
            seen = []
            async for record in client:
                seen.append(record)
                if len(seen) == COUNT:
                    break
            await client.commit()
            assert numbers(seen) == list(range(COUNT))
            assert events == ["assigned"]
            assert (await client.committed(both(full_topic)))[TopicPartition(full_topic, 1)].offset == 100

    asyncio.run(asyncio.wait_for(scenario(), 90))
