"""Controllers of a cluster that have forgotten which producer ids they gave out, as with an older copy of their log."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.unit.server.virtual_cluster import CONTROLLER, VirtualCluster


def cluster_with(folder: Path, producer_id: int) -> VirtualCluster:
    """In which a producer has written whose id nobody remembers to have given out."""
    cluster = VirtualCluster(folder).start()
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(cluster.is_known_to_all)
    batch = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    assert (
        cluster.result(cluster.nodes[1].produce("orders", b"first", timeout_ms=10_000, **batch)).error_code
        == ErrorCode.NONE
    )
    return cluster


def killed(cluster: VirtualCluster) -> VirtualCluster:
    for number, node in cluster.nodes.items():
        node.kill()
        cluster.controller.fence(number)
    cluster.calls.clear()
    return cluster


def restarted(cluster: VirtualCluster) -> VirtualCluster:
    return killed(cluster).start()


def given_out(cluster: VirtualCluster, node: int) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answer = cluster.result(cluster.nodes[node].send(request, 5))
    assert answer.error_code == ErrorCode.NONE
    return int(answer.producer_id)


def asked(cluster: VirtualCluster) -> int:
    sent = [request for _, target, request in cluster.calls if target == CONTROLLER]
    return sum(isinstance(request, AllocateProducerIdsRequest) for request in sent)


def test_ids_that_logs_have_are_not_given_out_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first record of a second producer with such an id would count as a duplicate: acknowledged, not written."""
    cluster = restarted(cluster_with(tmp_path, 5500))
    cluster.until(lambda: cluster.controller.image.next_producer_id > 5500)  # also for brokers without these logs
    assert [given_out(cluster, node) > 5500 for node in (1, 2)] == [True, True]
    assert any("5500" in message for message in caplog.messages)
    count = asked(cluster)
    assert count < 20
    restarted(cluster)
    assert asked(cluster) == 0, "they are known by now"


def test_a_controller_that_is_away_is_asked_again(tmp_path: Path) -> None:
    cluster = killed(cluster_with(tmp_path, 5500))
    for number in cluster.nodes:
        cluster.lag_ms[number, "producer ids"] = 60_000
    cluster.start()
    cluster.clock.advance_ms(7_000)
    assert cluster.controller.image.next_producer_id < 5500
    cluster.lag_ms.clear()
    cluster.until(lambda: cluster.controller.image.next_producer_id > 5500)
    assert given_out(cluster, 1) > 5500


def test_an_id_that_somebody_has_made_up_is_not_counted_up_to(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, 1 << 60)
    batch = {"producer_id": 2500, "producer_epoch": 0, "base_sequence": 0}
    assert cluster.result(cluster.nodes[1].produce("orders", b"second", **batch)).error_code == ErrorCode.NONE
    restarted(cluster)
    cluster.clock.advance_ms(10_000)
    assert 0 < asked(cluster) < 10
    assert 2500 < given_out(cluster, 1) < 10_000
