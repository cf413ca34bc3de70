"""Orders of a test to its broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.server.orders import Orders
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.test_produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData


@pytest.mark.parametrize("acks", [1, -1])
def test_a_request_whose_answer_is_lost_is_carried_out(node: BrokerInProcess, acks: int) -> None:
    node.create("t")
    orders = Orders(cast(Any, SimpleNamespace(broker=node.broker)))
    orders._lose_answers("Produce", 1)
    data = PartitionProduceData(index=0, records=batch_of([b"a"], timestamp_ms=node.clock.now_ms()))
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    assert node.call(request, 9) == []
    assert node.broker.partitions.get("t", 0).log_end_offset == 1
    assert node.call(request, 9).responses[0].partition_responses[0].base_offset == 1
