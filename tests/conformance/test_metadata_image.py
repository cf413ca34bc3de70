"""The image of what an Apache Kafka controller wrote, against what Kafka's own admin client answered just before."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.kraft_metadata import load_image, records_of, segment_files, snapshot_files
from oncelog.controller.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from oncelog.controller.image import Image, Resource
from oncelog.controller.image_records import image_records
from oncelog.controller.replay import Replay
from oncelog.core.ids import NodeId, uuid_to_text
from peers.kafka.dump import dump_files
from peers.kafka.jars import HERE, run_java
from peers.kafka.kafka import CLUSTER_ID, KafkaServer
from tests.conformance.conftest import require
from tests.conformance.wire import Wire

ADMIN = HERE.parent / "java" / "ClusterAdmin.java"
FEATURES = {
    "metadata.version": (7, 30),
    "kraft.version": (0, 1),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "broker.rack": "r1",
    "transaction.state.log.num.partitions": "4",
    # Several snapshots while the test runs.
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}


def register_broker_2(controller: str) -> int:
    """One that never sends a heartbeat, and so stays fenced; but partitions can be moved to it."""
    listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
    answer = Wire(controller).call(
        "broker_registration",
        4,
        broker_id=2,
        cluster_id=CLUSTER_ID,
        incarnation_id=uuid.uuid4(),
        listeners=[listener],
        features=[
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in FEATURES.items()
        ],
        rack="r2",
        log_dirs=[uuid.uuid4()],
        previous_broker_epoch=-1,
    )
    assert answer["error_code"] == 0, answer
    epoch: int = answer["broker_epoch"]
    return epoch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], int]:
    """A data folder, what was said of the cluster, and the epoch of its broker 2."""
    require("kafka")
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), properties=SETTINGS)
    try:
        server.start()
        epoch = register_broker_2(server.controller_address)
        run = run_java(ADMIN, server.bootstrap_servers, timeout_s=300)
        assert run.returncode == 0, run.stderr
    finally:
        # A clean stop would fence the broker and take its partitions away.
        server.kill9()
    return server.data_dir, json.loads(run.stdout), epoch


@pytest.fixture(scope="module")
def image(cluster: tuple[Path, dict[str, Any], int]) -> Image:
    loaded = load_image(cluster[0])
    assert loaded.is_complete
    return loaded.image


def test_topics_and_partitions(image: Image, cluster: tuple[Path, dict[str, Any], int]) -> None:
    ours = {
        topic.name: {
            "id": uuid_to_text(topic.topic_id),
            "partitions": [
                {
                    "leader": found.leader,
                    "replicas": list(found.replicas),
                    "isr": list(found.isr),
                    "elr": list(found.elr),
                    "last_known_elr": list(found.last_known_elr),
                    "adding": list(found.adding_replicas),
                    "removing": list(found.removing_replicas),
                }
                for _, found in sorted(topic.partitions.items())
            ],
        }
        for topic in image.topics.values()
    }
    assert ours == cluster[1]["topics"]
    assert ours.keys() == {"orders", "moved", "gone", "__transaction_state"}
    assert ours["moved"]["partitions"][0]["adding"] == [2]  # type: ignore[index]  # a dict of lists


def test_settings(image: Image, cluster: tuple[Path, dict[str, Any], int]) -> None:
    for name, expected in cluster[1]["settings"].items():
        kind, _, resource = name.partition(":")
        assert image.settings.get(Resource(int(kind), resource), {}) == expected
    assert image.topic_settings("orders") == {"cleanup.policy": "compact", "segment.bytes": "2000000"}
    assert image.topic_settings("gone") == {}


def test_features(image: Image, cluster: tuple[Path, dict[str, Any], int]) -> None:
    levels = {name: level for name, level in cluster[1]["features"].items() if level > 0}
    assert levels.pop("kraft.version") == 1
    assert image.features == levels


def test_brokers_and_controllers(image: Image, cluster: tuple[Path, dict[str, Any], int]) -> None:
    ours = {}
    for broker_id, broker in image.brokers.items():
        endpoint = broker.listeners["PLAINTEXT"]
        address = f"{endpoint.host}:{endpoint.port}"
        ours[str(broker_id)] = {"address": address, "rack": broker.rack, "fenced": broker.is_fenced}
    assert ours == cluster[1]["brokers"]
    assert image.brokers[NodeId(2)].epoch == cluster[2]
    assert list(image.controllers) == cluster[1]["voters"] == [1]


def test_quotas_credentials_acls_and_producer_ids(image: Image, cluster: tuple[Path, dict[str, Any], int]) -> None:
    quotas = [[dict(entity), values] for entity, values in image.quotas.items()]
    assert sorted(quotas, key=repr) == sorted(([dict(sorted(e.items())), v] for e, v in cluster[1]["quotas"]), key=repr)
    users = [[user.name, user.mechanism, record.iterations] for user, record in image.scram.items()]
    assert sorted(users) == sorted(cluster[1]["users"])
    acls = [
        [
            *(acl.resource_type, acl.resource_name, acl.pattern_type),
            *(acl.principal, acl.host, acl.operation, acl.permission_type),
        ]
        for acl in image.acls.values()
    ]
    assert sorted(acls) == sorted(cluster[1]["acls"])
    assert image.next_producer_id == 1000


def test_the_log_from_its_beginning_and_every_snapshot_lead_to_the_same_image(
    image: Image, cluster: tuple[Path, dict[str, Any], int]
) -> None:
    folder = cluster[0] / "__cluster_metadata-0"
    snapshots = snapshot_files(folder)
    assert len(snapshots) > 2
    for name, path in [*snapshots.items(), (None, None)]:
        replay = Replay(decode_checkpoint(path.read_bytes()).image) if path is not None else Replay()
        for segment in segment_files(folder):
            for record in records_of(segment, name.end_offset if name is not None else 0):
                replay.apply(record.known())
        assert replay.image() == image


def test_kafkas_own_tool_reads_our_snapshot(
    image: Image, cluster: tuple[Path, dict[str, Any], int], tmp_path: Path
) -> None:
    newest = max(snapshot_files(cluster[0] / "__cluster_metadata-0").items())[1]
    quorum = decode_checkpoint(newest.read_bytes()).quorum
    path = tmp_path / f"{999:020d}-{5:010d}.checkpoint"
    path.write_bytes(encode_checkpoint(Checkpoint(image, quorum, 1), epoch=5, timestamp_ms=2))
    dump = dump_files([path], "--cluster-metadata-decoder")
    assert dump.complaints() == []
    shown = [json.loads(line.partition("payload: ")[2]) for line in dump.stdout.splitlines() if '"type"' in line]
    assert len(shown) == len(list(image_records(image)))
    assert {record["data"]["name"] for record in shown if record["type"] == "TOPIC_RECORD"} == set(image.topic_ids)
