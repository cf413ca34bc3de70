"""Producers on a real broker: records, batching, memory, transactions, pools."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import (
    AbortableError,
    Admin,
    AsyncProducer,
    BatchProducer,
    BufferExhausted,
    ClientConfig,
    ConfigurationError,
    IllegalState,
    IsolationLevel,
    KafkaError,
    NewTopic,
    Producer,
    ProducerFenced,
    ProducerPool,
    TimedOut,
    TopicPartition,
    TransactionClient,
    TransactionError,
)
from oncelog.client.accumulator import Accumulator
from oncelog.client.batch_sequence import Delivery
from oncelog.client.columns import encode_columns
from oncelog.client.deadline import Deadline
from oncelog.client.errors import ErrorCode
from oncelog.client.partitioner import Partitioner
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.transaction_state import State
from oncelog.core.hashing import partition_for_key
from oncelog.testing.broker import BrokerProcess
from tests.unit.client.client_factory import client_factory
from tests.unit.client.reading import Reading
from tests.waiting import wait_until

TP = TopicPartition("t", 0)


@pytest.fixture
def make(servers: str) -> Iterator[Callable[..., Producer]]:
    with client_factory(Producer, {"bootstrap.servers": servers, "linger.ms": 0}) as factory:
        yield lambda transactional_id=None, **settings: factory(transactional_id=transactional_id, **settings)


# Records


def test_a_record_arrives_with_key_value_headers_and_time(make: Any, reading: Reading, topic: str) -> None:
    sent = make().send(topic, "value", key="key", headers={"h": "x", "n": None}, timestamp_ms=5).result(60)
    record = reading.records(topic, [sent.partition])[sent.offset]
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (
        b"key",
        b"value",
        (("h", b"x"), ("n", None)),
        5,
    )
    assert sent.partition == partition_for_key(b"key", 2)
    assert sent.timestamp_ms == 5


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read_back(make: Any, reading: Reading, topic: str, codec: str) -> None:
    client = make(compression_type=codec, linger_ms=20)
    for number in range(50):
        client.send(topic, f"{number:0100d}", partition=0)
    client.flush()
    assert reading.values(topic, [0]) == [f"{number:0100d}".encode() for number in range(50)]


def test_records_without_a_key_stick_to_a_partition_while_a_batch_grows(
    make: Any, reading: Reading, topic: str
) -> None:
    client = make(linger_ms=10)
    futures = [client.send(topic, str(number)) for number in range(20)]
    client.flush()
    assert len({future.result().partition for future in futures}) == 1
    rounds = set()
    for _ in range(20):
        rounds.add(client.send(topic, "x").result(60).partition)
    assert rounds == {0, 1}


def test_many_threads_share_a_producer(make: Any, reading: Reading, topic: str) -> None:
    client = make(linger_ms=1)

    def work(thread: int) -> None:
        for number in range(200):
            client.send(topic, f"{thread}-{number}", partition=0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    values = reading.values(topic, [0])
    assert len(values) == len(set(values)) == 800
    for thread_number in range(4):
        mine = [v for v in values if v.startswith(b"%d-" % thread_number)]
        assert mine == [b"%d-%d" % (thread_number, n) for n in range(200)]


def test_callbacks_run_for_each_record(make: Any, topic: str) -> None:
    done = threading.Event()
    seen: list[int] = []

    def note(future: Any) -> None:
        seen.append(future.result().offset)
        done.set()

    make().send(topic, "x", partition=0, on_delivery=note)
    assert done.wait(180)
    assert seen == [0]


def test_serializers_are_applied_and_other_types_refused(servers: str, reading: Reading, topic: str) -> None:
    with Producer({"bootstrap.servers": servers}, value_serializer=lambda topic, value: str(value).encode()) as client:
        client.send(topic, 42, partition=0).result(60)
        with pytest.raises(TypeError, match="set a key_serializer"):
            client.send(topic, 1, key=object())
    assert reading.values(topic, [0]) == [b"42"]


@pytest.mark.parametrize("timestamp_ms", [2**63, -(2**63) - 1])
def test_a_timestamp_that_no_record_can_have_is_refused(make: Any, topic: str, timestamp_ms: int) -> None:
    client = make()
    with pytest.raises(KafkaError, match=rf"{topic} has the timestamp {timestamp_ms}") as caught:
        client.send(topic, "x", partition=0, timestamp_ms=timestamp_ms)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert client.send(topic, "x", partition=0).result(60).offset == 0


def test_records_that_are_too_large_and_partitions_that_are_not_there_are_refused(make: Any, topic: str) -> None:
    client = make(max_request_size=1000)
    with pytest.raises(KafkaError, match=r"max\.request\.size") as caught:
        client.send(topic, b"x" * 1000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError, match="there is no 2"):
        client.send(topic, b"x", partition=2)


def test_a_topic_that_cannot_be_created_ends_the_wait(make: Any) -> None:
    client = make(max_block_ms=200, allow_auto_create_topics=False)
    started = time.monotonic()
    with pytest.raises(TimedOut, match="nowhere"):
        client.send("nowhere", b"x")
    assert time.monotonic() - started < 30, "max.block.ms is 200, the default is 60 s"


def test_columns_are_partitioned_by_key_and_keep_their_order(make: Any, reading: Reading, topic: str) -> None:
    keys = [b"k%d" % (n % 7) for n in range(500)]
    values = [b"%d" % n for n in range(500)]
    client = make()
    futures = client.send_columns(topic, pa.array(values), key=pa.array(keys))
    client.flush()
    assert sum(future.result().records_count for future in futures) == 500
    for number in (0, 1):
        expected = [v for k, v in zip(keys, values, strict=True) if partition_for_key(k, 2) == number]
        assert reading.values(topic, [number]) == expected


def test_batches_that_were_queued_before_columns_were_refused_have_an_outcome(
    make: Any, reading: Reading, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make(buffer_memory=20_000, batch_size=16_384)

    def wait_in_vain(full: Accumulator, _: Deadline) -> None:
        raise full.exhausted()

    monkeypatch.setattr(Accumulator, "wait_for_room", wait_in_vain)
    outcomes: list[Future[Delivery]] = []
    with pytest.raises(BufferExhausted):
        client.send_columns(topic, pa.array([b"x" * 50_000] * 40), partition=0, on_delivery=outcomes.append)
    client.flush()
    assert len(reading.values(topic, [0])) == sum(one.result().records_count for one in outcomes) > 0
    with pytest.raises(TypeError, match="on_delivery"):
        client.send_columns(topic, pa.array([b"x"]), on_delivery="no function")


def test_a_closed_producer_refuses_and_closing_delivers_first(servers: str, reading: Reading, topic: str) -> None:
    client = Producer({"bootstrap.servers": servers, "linger.ms": 10_000, "delivery.timeout.ms": 60_000})
    client.send(topic, "x", partition=0)
    client.close()
    client.close()
    assert reading.values(topic, [0]) == [b"x"]
    with pytest.raises(IllegalState, match="closed"):
        client.send(topic, "y", partition=0)


def test_asyncio_programs_send_and_commit(servers: str, reading: Reading, topic: str, unique: Any) -> None:
    async def scenario() -> None:
        async with AsyncProducer({"bootstrap.servers": servers, "transactional.id": unique("txn")}) as client:
            await client.init_transactions()
            async with client.transaction():
                futures = [await client.send(topic, str(n), partition=0) for n in range(10)]
            assert [(await future).offset for future in futures] == list(range(10))
            with pytest.raises(KeyError):
                async with client.transaction():
                    await client.send(topic, "aborted", partition=0)
                    raise KeyError

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert reading.values(topic, [0]) == [b"%d" % n for n in range(10)]


def test_a_flush_that_is_cancelled_leaves_no_error_that_nobody_has_seen(
    servers: str, topic: str, unique: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancel_and_abort() -> None:
        settings = {"bootstrap.servers": servers, "transactional.id": unique("txn"), "linger.ms": 1000}
        async with AsyncProducer(settings) as producer:
            await producer.init_transactions()
            for _ in range(2):
                await producer.begin_transaction()
                await producer.send(topic, "x")
                flushing = asyncio.create_task(producer.flush())
                await asyncio.sleep(0)
                flushing.cancel()
                await producer.abort_transaction()

    asyncio.run(cancel_and_abort())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_asynchronous_producer_waits_for_room_without_blocking_the_loop(servers: str, topic: str) -> None:
    async def scenario() -> None:
        async with AsyncProducer(
            {"bootstrap.servers": servers, "buffer.memory": 20_000, "batch.size": 5_000}
        ) as client:
            for _ in range(200):
                await client.send(topic, b"x" * 1000, partition=0)
            await client.flush()

    asyncio.run(asyncio.wait_for(scenario(), 60))


# Memory


def accumulator(**options: int) -> Accumulator:
    sizes = {"batch_bytes": 300, "buffer_bytes": 1000, "linger_ms": 1000, "delivery_timeout_ms": 1000, **options}
    config = replace(ProducerConfig.parse({"bootstrap.servers": "nowhere:1"}), **sizes)
    return Accumulator(config, lambda delay: None)


def test_memory_is_bounded_and_released_with_the_delivery() -> None:
    full = accumulator()
    while full.append(TP, 0, None, b"x" * 100, ()) is not None:
        pass
    assert 900 < full.used_bytes <= 1000
    with pytest.raises(BufferExhausted, match=r"buffer\.memory"):
        full.wait_for_room(Deadline(10))
    batch = full.take_ready(TP, time.monotonic())
    assert batch is not None
    full.complete(batch, Delivery(TP, 0, -1, 2))
    assert full.append(TP, 0, None, b"x" * 100, ()) is not None


def test_room_that_was_made_just_before_it_is_waited_for_is_not_missed() -> None:
    full = accumulator()
    full.append(TP, 0, None, b"x" * 900, ())
    assert full.append(TP, 0, None, b"x" * 900, ()) is None
    batch = full.take_ready(TP, time.monotonic() + 9)
    assert batch is not None
    full.complete(batch, Delivery(TP, 0, -1, 1))
    full.wait_for_room(Deadline(1))


def test_a_batch_is_ready_when_it_is_full_or_has_waited() -> None:
    waiting = accumulator()
    waiting.append(TP, 0, None, b"x", ())
    now = time.monotonic()
    assert waiting.take_ready(TP, now) is None
    assert waiting.take_ready(TP, now + 2) is not None
    for _ in range(4):
        waiting.append(TP, 0, None, b"x" * 80, ())
    assert waiting.take_ready(TP, now) is not None


def test_a_record_larger_than_everything_is_still_taken_when_nothing_else_waits() -> None:
    assert accumulator().append(TP, 0, None, b"x" * 5000, ()) is not None


def test_a_slow_broker_blocks_the_sender_no_longer_than_it_may(topic: str, make: Any, servers: str) -> None:
    client = make(buffer_memory=20_000, max_block_ms=2_000, linger_ms=5000, batch_size=10_000)
    client.send(topic, b"x", partition=0)
    client.flush()
    # Frozen: nothing is taken out, so the buffer fills.
    client.core.sender.send_ready = lambda: None
    with pytest.raises(BufferExhausted):
        for _ in range(100):
            client.send(topic, b"x" * 1000, partition=0)
    del client.core.sender.send_ready


def test_the_partitioner_rotates_to_another_partition() -> None:
    chooser = Partitioner()
    first = chooser.partition("t", None, 3)
    assert chooser.partition("t", None, 3) == first
    chooser.rotate("t", first, 3)
    assert chooser.partition("t", None, 3) != first
    assert Partitioner(ignore_keys=True).partition("t", b"k", 1) == 0


# Transactions


def test_transactions_appear_when_they_commit_and_vanish_when_they_abort(
    make: Any, reading: Reading, topic: str, unique: Any
) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    with client.transaction():
        client.send(topic, "a", partition=0)
        client.flush()
        assert reading.values(topic) == []
    assert reading.values(topic) == [b"a"]
    with pytest.raises(ZeroDivisionError), client.transaction():
        client.send(topic, "b", partition=0)
        client.flush()
        raise ZeroDivisionError
    with client.transaction():
        client.send(topic, "c", partition=1)
    assert reading.values(topic) == [b"a", b"c"]
    everything = reading.records(topic, isolation=IsolationLevel.READ_UNCOMMITTED)
    assert [record.value for record in everything] == [b"a", b"b", b"c"]


def test_empty_transactions_need_no_coordinator(make: Any, unique: Any) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    for _ in range(3):
        with client.transaction():
            pass
    client.begin_transaction()
    client.abort_transaction()
    assert client.state is State.READY


def test_offsets_become_the_groups_with_the_commit_only(
    make: Any, module_admin: Admin, topic: str, unique: Any
) -> None:
    client, group, place = make(unique("txn")), unique("group"), TopicPartition(topic, 0)
    client.init_transactions()
    client.begin_transaction()
    client.send_offsets_to_transaction({place: 7}, group)
    client.abort_transaction()
    assert module_admin.group_offsets(group, [place], require_stable=True) == {}
    with client.transaction():
        client.send_offsets_to_transaction({place: 9}, group)
    assert module_admin.group_offsets(group, [place], require_stable=True)[place].offset == 9


def test_calls_out_of_order_are_refused_with_advice(make: Any, topic: str, unique: Any) -> None:
    plain = make()
    for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
        with pytest.raises(IllegalState, match=r"transactional\.id"):
            call()
    client = make(unique("txn"))
    with pytest.raises(IllegalState, match="init_transactions"):
        client.begin_transaction()
    client.init_transactions()
    with pytest.raises(IllegalState, match="begin_transaction"):
        client.send(topic, "x")
    with pytest.raises(IllegalState):
        client.commit_transaction()
    with pytest.raises(IllegalState, match=r"while ready: begin_transaction\(\) comes next"):
        client.init_transactions()
    client.begin_transaction()
    with pytest.raises(IllegalState):
        client.begin_transaction()
    client.close()
    with pytest.raises(IllegalState, match="this producer is closed"):
        client.begin_transaction()


@pytest.mark.parametrize("name", ["commit_transaction", "abort_transaction"])
def test_a_block_that_has_ended_its_transaction_says_so(make: Any, topic: str, unique: Any, name: str) -> None:
    client = make(unique("txn"))
    client.init_transactions()
    with pytest.raises(IllegalState, match="has ended within the block that commits it"), client.transaction():
        client.send(topic, "x")
        getattr(client, name)()


def test_a_forked_child_cannot_use_a_producer_and_need_not_close_it(servers: str, topic: str) -> None:
    program = f"""
import os
from oncelog.client import Producer
with Producer({{"bootstrap.servers": {servers!r}}}) as producer:
    producer.send({topic!r}, "of the parent").result(60)
    child = os.fork()
    if not child:
        try:
            producer.send({topic!r}, "of the child")
        except Exception as error:
            print(type(error).__name__, error, flush=True)
if child:
    os.waitpid(child, 0)
    print("closed by both")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert "IllegalState this Producer was made in process" in done.stdout and "closed by both" in done.stdout
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_closing_aborts_an_open_transaction(servers: str, reading: Reading, topic: str, unique: Any) -> None:
    name = unique("txn")
    client = Producer({"bootstrap.servers": servers, "transactional.id": name})
    client.init_transactions()
    client.begin_transaction()
    client.send(topic, "x", partition=0)
    client.flush()
    client.close()
    assert reading.admin.describe_transactions([name])[name].state in ("CompleteAbort", "PrepareAbort")


# Many threads


def test_a_pool_gives_each_thread_its_own_producer_and_uses_them_again(
    servers: str, reading: Reading, topic: str, unique: Any
) -> None:
    with ProducerPool({"bootstrap.servers": servers, "linger.ms": 0}, unique("pool"), size_max=3) as pool:

        def work(thread: int) -> None:
            for number in range(5):
                with pool.transaction() as client:
                    client.send(topic, f"{thread}-{number}", partition=0)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (pool.idle_count <= 3, pool.in_use_count) == (True, 0)
    values = reading.values(topic, [0])
    assert sorted(values) == sorted(b"%d-%d" % (t, n) for t in range(6) for n in range(5))


def test_a_pool_replaces_a_fenced_producer(
    servers: str, module_admin: Admin, reading: Reading, topic: str, unique: Any
) -> None:
    prefix = unique("pool")
    with ProducerPool({"bootstrap.servers": servers, "linger.ms": 0}, prefix, size_max=1) as pool:
        with pool.transaction() as client:
            client.send(topic, "1", partition=0)
        module_admin.fence_producers([f"{prefix}-0"])
        with pytest.raises((ProducerFenced, AbortableError)), pool.transaction() as client:
            client.send(topic, "lost", partition=0)
        with pool.transaction() as client:
            client.send(topic, "2", partition=0)
    assert reading.values(topic, [0]) == [b"1", b"2"]


def test_an_exhausted_pool_makes_threads_wait_in_bounds(servers: str, unique: Any) -> None:
    with (
        ProducerPool({"bootstrap.servers": servers}, unique("pool"), size_max=1) as pool,
        pool.transaction(),
        pytest.raises(TimedOut, match="stayed in use"),
        pool.transaction(timeout_ms=50),
    ):
        pass


def test_a_pool_names_its_own_producers() -> None:
    with pytest.raises(ConfigurationError, match=r"transactional\.id"):
        ProducerPool({"bootstrap.servers": "a:1", "transactional.id": "x"}, "p")
    with pytest.raises(ConfigurationError, match="prefix"):
        ProducerPool({"bootstrap.servers": "a:1"}, "")


# One transaction, many writers


@pytest.mark.parametrize("version", [1, 2])
def test_tasks_share_the_drivers_transaction(
    config: ClientConfig, reading: Reading, topic: str, unique: Any, version: int
) -> None:
    settings = ClientConfig(bootstrap_servers=config.bootstrap_servers, transaction_version_max=version)
    places, group = [TopicPartition(topic, 0), TopicPartition(topic, 1)], unique("group")
    with TransactionClient(settings) as driver:
        driver.init(unique("txn"))
        # Two batches of the same shape: without a fresh epoch the second would be taken for a duplicate.
        for round_number in range(2):
            transaction = pickle.loads(pickle.dumps(driver.share([topic])))
            assert transaction.topics[topic].partitions == 2
            for place in places:
                rows = pa.array([b"%d-%d-%d" % (round_number, place.partition, n) for n in range(100)])
                with BatchProducer(settings, transaction) as task:
                    encoded = encode_columns(rows, timestamp_ms=0, batch_bytes=1000)
                    summary = task.produce(place.topic, place.partition, iter(encoded))
                    assert (summary.records, summary.next_sequence) == (100, 100)
            driver.commit_offsets(group, {places[0]: round_number})
            before = driver.identity
            driver.end(True)
            if not driver.uses_tv2:
                assert driver.identity == before
                driver.fresh_epoch()
            assert driver.identity.epoch == before.epoch + 1
        assert driver.fetch_offsets(group, places)[places[0]].offset == 1
    expected = [b"%d-%d-%d" % (r, p, n) for p in (0, 1) for r in (0, 1) for n in range(100)]
    assert reading.values(topic) == expected


def test_a_fenced_driver_and_its_tasks_are_told(config: ClientConfig, topic: str, unique: Any) -> None:
    name = unique("txn")
    with TransactionClient(config) as old, TransactionClient(config) as new:
        old.init(name)
        transaction = old.share()
        new.init(name)
        with pytest.raises(ProducerFenced):
            old.init(name, expected=old.identity)
        with pytest.raises(ProducerFenced):
            old.end(False)
        encoded = encode_columns(pa.array([b"x"]), timestamp_ms=0)
        with BatchProducer(config, transaction) as task, pytest.raises(TransactionError):
            task.produce(topic, 0, encoded)


def test_a_driver_without_init_is_refused(config: ClientConfig) -> None:
    with TransactionClient(config) as driver, pytest.raises(IllegalState, match="init"):
        driver.end(True)


def test_new_topics_appear_when_a_producer_first_writes(make: Any, unique: Any, reading: Reading) -> None:
    name = unique("auto")
    make().send(name, "x", partition=0).result(60)
    assert reading.values(name, [0]) == [b"x"]


def test_a_broker_that_restarts_is_found_again(tmp_path: Any) -> None:
    process = BrokerProcess(tmp_path / "data").start()
    try:
        with Producer({"bootstrap.servers": process.bootstrap_servers, "linger.ms": 0}) as client:
            client.send("t", "1", partition=0).result(60)
            process.kill()
            waiting = client.send("t", "2", partition=0)
            process.start()
            assert waiting.result(60).offset == 1
    finally:
        process.stop()


def test_new_partitions_are_noticed(make: Any, module_admin: Admin, topic: str) -> None:
    client = make(metadata_max_age_ms=50)
    client.send(topic, "x", partition=0).result(60)
    module_admin.create_partitions({topic: 3})
    wait_until(lambda: client.core.cluster.topics[topic].partitions[-1].partition == 2)
    assert client.send(topic, "y", partition=2).result(60).partition == 2


def test_a_topic_that_is_made_anew_loses_no_record_of_an_idempotent_producer(
    make: Any, module_admin: Admin, reading: Reading, unique: Any
) -> None:
    name, client = unique("anew"), make()
    module_admin.create_topics([NewTopic(name, 1, 1)])
    for number in range(5):
        client.send(name, str(number), partition=0).result(60)
    module_admin.delete_topics([name])
    module_admin.create_topics([NewTopic(name, 1, 1)])
    assert client.send(name, "after", partition=0).result(60).offset == 0
    assert reading.values(name, [0]) == [b"after"]


def test_the_admin_creates_what_a_producer_needs(module_admin: Admin, unique: Any) -> None:
    name = unique("made")
    module_admin.create_topics([NewTopic(name, 3, 1, {"retention.ms": "1000"})])
    with pytest.raises(KafkaError) as caught:
        module_admin.create_topics([name])
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    module_admin.create_topics([name], if_not_exists=True)
    assert len(module_admin.describe_topics([name])[name].partitions) == 3
