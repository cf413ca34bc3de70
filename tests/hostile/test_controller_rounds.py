"""What a controller decides for a broker that is there: how long its loop works on it at a stretch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from uuid import UUID

import pytest

from oncelog.cluster.cluster_config import FEATURES
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message
from tests.hostile.controller_rows import CONTROLLER
from tests.hostile.measured_broker import MeasuredBroker, measured_broker
from tests.hostile.play import ATTEMPTS
from tests.hostile.wire import Client, request_of

BROKER_ID = 1
STRETCH_S_MAX = 0.05
TOPICS = 5_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has spent")


@pytest.fixture
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    settings = {**CONTROLLER, "broker.session.timeout.ms": 300_000}
    with measured_broker(tmp_path_factory.mktemp("controller"), settings) as controller:
        yield controller


@pytest.fixture
def client(controller: MeasuredBroker) -> Iterator[Client]:
    """Of one with a broker, which does nothing but say so."""
    with contextlib.closing(Client(controller.bootstrap_servers)) as client:
        cluster_id = client.ask(request_of(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 2}), 1)[0].cluster_id
        identity = {"broker_id": BROKER_ID, "cluster_id": cluster_id, "incarnation_id": UUID(int=1),
                    "listeners": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9, "security_protocol": 0}],
                    "features": [{"name": each.name, "min_supported_version": each.min_supported_version,
                                  "max_supported_version": each.max_supported_version} for each in FEATURES],
                    "log_dirs": [UUID(int=200)], "previous_broker_epoch": -1}  # fmt: skip
        registered = client.ask(request_of(ApiKey.BROKER_REGISTRATION, identity), 4)[0]
        assert registered.error_code == 0, registered
        alive = {"broker_id": BROKER_ID, "broker_epoch": registered.broker_epoch, "want_fence": False,
                 "current_metadata_offset": registered.broker_epoch + 100}  # fmt: skip
        assert not client.ask(request_of(ApiKey.BROKER_HEARTBEAT, alive), 1)[0].is_fenced
        yield client


def stretch_s(controller: MeasuredBroker, client: Client, request: Message, version: int) -> float:
    """The longest, until what was decided is applied too: nothing is answered before."""
    controller.take_longest_stretch_s()
    answer = client.ask(request, version)[0]
    results = answer.topics if hasattr(answer, "topics") else answer.responses
    assert {result.error_code for result in results} == {0}
    return controller.take_longest_stretch_s()


@pytest.mark.parametrize(("topics", "partitions"), [(TOPICS, 1), (1, 2 * TOPICS)], ids=["topics", "partitions"])
def test_topics_that_are_made_and_deleted(
    controller: MeasuredBroker, client: Client, topics: int, partitions: int
) -> None:
    made_s, deleted_s = [], []
    for attempt in range(ATTEMPTS):
        names = [f"t{attempt}-{number}" for number in range(topics)]
        wanted = [{"name": name, "num_partitions": partitions, "replication_factor": 1} for name in names]
        create = request_of(ApiKey.CREATE_TOPICS, {"topics": wanted})
        made_s.append(stretch_s(controller, client, create, 7))
        deleted_s.append(stretch_s(controller, client, request_of(ApiKey.DELETE_TOPICS, {"topic_names": names}), 5))
        if max(made_s[-1], deleted_s[-1]) < STRETCH_S_MAX:
            break
    assert min(made_s) < STRETCH_S_MAX, (made_s, deleted_s)
    assert min(deleted_s) < STRETCH_S_MAX, (made_s, deleted_s)
