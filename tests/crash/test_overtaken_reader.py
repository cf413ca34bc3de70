"""A reader that retention overtakes misses records that were deleted, and must not report them as lost."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from oncelog.testing import BrokerProcess
from tests.crash.files import stop_and_check_files
from tests.crash.killer import RETAINED, SMALL, create
from tests.crash.load import PARTITIONS, IdempotentLoad, by_partition, check_retained, consume, log_starts
from tests.simulation.log_audit import audit
from tests.waiting import wait_until

pytestmark = pytest.mark.crash

RECORDS = 9_000
ONE_FETCH_AHEAD = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1}


def retain(broker: BrokerProcess, topic: str, retention_bytes: str) -> None:
    """Returns when retention has deleted from each partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    entry = ConfigEntry("retention.bytes", retention_bytes, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    wait_until(lambda: min(log_starts(broker.bootstrap_servers, topic).values()) > 0, "retention deleted nothing")


def has_gap(messages: list[Message], partition: int) -> bool:
    offsets = [message.offset() for message in messages if message.partition() == partition]
    return any(after > before + 1 for before, after in pairwise(offsets))


def test_records_that_retention_deleted_before_the_reader_came_are_not_lost(busy_broker: BrokerProcess) -> None:
    create(busy_broker, "numbers", SMALL)
    load = IdempotentLoad(busy_broker.bootstrap_servers, "numbers")
    load.send(RECORDS)
    load.finish()
    reading = consume(busy_broker.bootstrap_servers, "numbers", settings=ONE_FETCH_AHEAD)
    messages = list(islice(reading, 1))
    retain(busy_broker, "numbers", RETAINED["retention.bytes"])
    messages += reading
    assert any(has_gap(messages, partition) for partition in range(PARTITIONS)), "the reader was not overtaken"
    with pytest.raises(AssertionError, match="acknowledged records were lost"):
        check_retained(load, by_partition(messages))
    starts = log_starts(busy_broker.bootstrap_servers, "numbers")
    check_retained(load, by_partition(messages, starts))
    for place in (0, 5):
        without_one = [message for message in messages if message.offset() != starts[message.partition()] + place]
        with pytest.raises(AssertionError, match="acknowledged records were lost"):
            check_retained(load, by_partition(without_one, starts))
    stop_and_check_files(busy_broker)
    logs = audit(busy_broker.data_dir).logs
    check_retained(load, {p: [record.value or "" for record in logs["numbers", p]] for p in range(PARTITIONS)})
