"""What ApiVersions names, and what others conclude from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest
from tests.unit.server.harness import BrokerInProcess

OF_KAFKA_3_9 = {
    *range(4),
    *range(8, 27),
    *range(28, 52),
    *(60, 61, 65, 66, 68, 69),
}
"""What a broker of Kafka 3.9 has for clients. franz-go takes one that lacks a key of these for an older one."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path / "data", {"log.cleaner.enable": "false"})
    node.create("t")
    yield node
    node.broker.stop(clean=False)


def test_everything_that_kafka_3_9_has_for_clients_is_served(node: BrokerInProcess) -> None:
    assert node.broker.dispatcher.versions.keys() >= OF_KAFKA_3_9


def test_kafka_python_takes_the_broker_for_kafka_4_3(node: BrokerInProcess) -> None:
    assert infer_broker_version_from_api_versions(node.broker.dispatcher.versions) == (4, 3)


def test_a_partition_is_in_the_one_folder_that_there_is(node: BrokerInProcess) -> None:
    def outcomes(folder: str) -> list[int]:
        topics = [
            AlterReplicaLogDirTopic(name="t", partitions=[0, 7]),
            AlterReplicaLogDirTopic(name="no", partitions=[0]),
        ]
        answer = node.call(AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=folder, topics=topics)]), 2)
        return [partition.error_code for result in answer.results for partition in result.partitions]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes(str(node.broker.log_dir.path.absolute())) == [ErrorCode.NONE, unknown, unknown]
    assert outcomes("/elsewhere") == [ErrorCode.LOG_DIR_NOT_FOUND] * 3


def test_an_election_on_all_partitions_names_topics_without_partitions(node: BrokerInProcess) -> None:
    answer = node.call(ElectLeadersRequest(election_type=0, topic_partitions=None), 2)
    assert [(result.topic, result.partition_result) for result in answer.replica_election_results] == [("t", [])]
