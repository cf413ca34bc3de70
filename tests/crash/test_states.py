"""kill -9 in each state of a transaction, with librdkafka as the client and the files as the judge.

An open transaction is still open and its producer goes on; a decided one ends as it was decided, also when its
producer is gone for good.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from oncelog.testing import BrokerProcess
from tests.conformance.wire import Wire
from tests.crash.files import last_state, stop_and_check_files
from tests.crash.killer import create
from tests.crash.load import QUICK_RECONNECT, read
from tests.simulation.log_audit import ONGOING, PREPARE_ABORT, PREPARE_COMMIT

pytestmark = pytest.mark.crash

ID = "tx"
GROUP = "readers"


@pytest.fixture
def broker(broker: BrokerProcess) -> BrokerProcess:
    create(broker, "ledger")
    return broker


def new_producer(broker: BrokerProcess) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": ID,
            **QUICK_RECONNECT,
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    return producer


def send_everywhere(broker: BrokerProcess, producer: Producer, word: str) -> None:
    """A record on each partition and an offset, all acknowledged."""
    for partition in range(3):
        producer.produce("ledger", f"{word}:{partition}", partition=partition)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    producer.send_offsets_to_transaction(
        [TopicPartition("ledger", 0, len(word))], consumer.consumer_group_metadata(), 20
    )
    consumer.close()


def state_of(broker: BrokerProcess) -> str:
    with Wire(broker.bootstrap_servers) as wire:
        states = wire.call("describe_transactions", 0, transactional_ids=[ID])["transaction_states"]
    return str(states[0]["transaction_state"])


def committed_offset(broker: BrokerProcess) -> int:
    with Wire(broker.bootstrap_servers) as wire:
        topics = [{"name": "ledger", "partition_indexes": [0]}]
        answer = wire.call("offset_fetch", 7, group_id=GROUP, topics=topics, require_stable=True)
    partition: dict[str, Any] = answer["topics"][0]["partitions"][0]
    assert partition["error_code"] == 0
    return int(partition["committed_offset"])


def test_an_open_transaction_is_still_open_and_its_producer_goes_on(broker: BrokerProcess) -> None:
    producer = new_producer(broker)
    producer.begin_transaction()
    send_everywhere(broker, producer, "before")
    broker.kill()
    assert last_state(broker.data_dir, ID) == ONGOING
    broker.start()
    assert state_of(broker) == "Ongoing"
    assert dict(read(broker.bootstrap_servers, "ledger")) == {}
    send_everywhere(broker, producer, "after")
    producer.commit_transaction(30)
    seen = read(broker.bootstrap_servers, "ledger")
    assert seen == {partition: [f"before:{partition}", f"after:{partition}"] for partition in range(3)}
    assert committed_offset(broker) == len("after")
    stop_and_check_files(broker)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("marker", [1, 2, 4])
def test_a_decided_transaction_ends_as_its_log_says_without_its_producer(
    broker: BrokerProcess, commit: bool, marker: int
) -> None:
    """Killed before the first, the second and the last of its four markers."""
    broker.stop()
    broker.start(extra_arguments=["--failpoint", f"txn.marker.before_write@{marker}"])
    producer = new_producer(broker)
    producer.begin_transaction()
    send_everywhere(broker, producer, "decided")
    with suppress(KafkaException):
        # The broker dies of it; with nobody to ask, librdkafka gives up when its time is over.
        producer.commit_transaction(1) if commit else producer.abort_transaction(1)
    del producer
    assert broker.wait_for_exit(20) == -9
    assert last_state(broker.data_dir, ID) == (PREPARE_COMMIT if commit else PREPARE_ABORT)
    broker.start()
    assert state_of(broker) == ("CompleteCommit" if commit else "CompleteAbort")
    seen = read(broker.bootstrap_servers, "ledger")
    assert dict(seen) == ({partition: [f"decided:{partition}"] for partition in range(3)} if commit else {})
    assert committed_offset(broker) == (len("decided") if commit else -1)


def test_a_new_instance_aborts_what_the_killed_broker_and_its_client_left_open(broker: BrokerProcess) -> None:
    abandoned = new_producer(broker)
    abandoned.begin_transaction()
    send_everywhere(broker, abandoned, "abandoned")
    broker.kill()
    broker.start()
    successor = new_producer(broker)
    successor.begin_transaction()
    send_everywhere(broker, successor, "mine")
    successor.commit_transaction(30)
    assert read(broker.bootstrap_servers, "ledger") == {partition: [f"mine:{partition}"] for partition in range(3)}
    with pytest.raises(KafkaException) as refused:
        abandoned.commit_transaction(20)
    assert refused.value.args[0].fatal()
