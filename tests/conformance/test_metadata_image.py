"""The image of what an Apache Kafka controller wrote, against what Kafka's own admin client answered just before.

The controller has two brokers: its own, and one that is played by the observer of the quorum and the life of a broker.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.kraft_metadata import load_image, records_of, segment_files, snapshot_files
from oncelog.cluster.lifecycle import Identity, Lifecycle, State, Timing
from oncelog.cluster.quorum_log import QuorumLog
from oncelog.controller.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from oncelog.controller.image import ConfigResource, Image
from oncelog.controller.image_records import image_records
from oncelog.controller.replay import Replay
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NodeId, uuid_to_text
from oncelog.inspection.metadata_records import metadata_record
from oncelog.protocol.batch import decode_records, iter_headers, whole_batches
from oncelog.protocol.messages.broker_registration import BrokerRegistrationResponse, Feature, Listener
from oncelog.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from peers.kafka.dump import dump_files
from peers.kafka.jars import HERE, run_java
from peers.kafka.kafka import CLUSTER_ID, KafkaServer
from tests.conformance.conftest import require
from tests.conformance.controller_shell import Shell, monotonic_ms

DUPLICATE = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
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
    # Several snapshots while the test runs, on a busy machine too.
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    # The broker that is played sends no heartbeat while others have a word.
    "broker.session.timeout.ms": "600000",
}


def played_broker(server: KafkaServer, broker_id: int, **changes: Any) -> Shell:
    host, _, port = server.controller_address.rpartition(":")
    directory_id = uuid.uuid4()
    observer = QuorumLog(
        cluster_id=CLUSTER_ID, replica_id=broker_id, directory_id=directory_id, bootstrap=[Address(host, int(port))]
    )
    identity = Identity(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=uuid.uuid4(),
        listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
        features=[
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in FEATURES.items()
        ],
        rack="r2",
        directory_id=directory_id,
        previous_epoch=-1,
    )
    return Shell(observer, Lifecycle(identity._replace(**changes), Timing(), monotonic_ms()))


@dataclass
class Session:
    """What was seen of one cluster."""

    data_dir: Path
    """A copy, made when the admin client had ended."""
    said: dict[str, Any]
    epoch_of_2: int
    observed: Image
    late: Shell
    """An observer that came when there were snapshots."""
    lives: list[tuple[State, bool]]
    """Of broker 2: what it is for itself, and whether it is fenced in the image."""
    refusals: list[str | None]


def copied_metadata(data_dir: Path, into: Path) -> Path:
    """While the controller runs: a snapshot may be on its way to its name, and a batch to the end of the log."""
    name = "__cluster_metadata-0"
    shutil.copytree(data_dir / name, into / name, ignore=shutil.ignore_patterns("*.part*", "*.tmp"))
    for path in segment_files(into / name):
        path.write_bytes(whole_batches(path.read_bytes()))
    return into


def play(server: KafkaServer, folder: Path) -> Session:
    shell = played_broker(server, 2)
    life, observer = shell.lifecycle, shell.observer
    lives: list[tuple[State, bool]] = []

    def note() -> None:
        lives.append((life.state, observer.image.brokers[NodeId(2)].is_fenced))

    shell.run_until(lambda: life.state is State.RECOVERING and NodeId(2) in observer.image.brokers)
    note()
    run = run_java(ADMIN, server.bootstrap_servers, timeout_s=300)
    assert run.returncode == 0, run.stderr
    shell.run_until(lambda: len(observer.image.acls) == 2)
    observed = observer.image
    copy = copied_metadata(server.data_dir, folder / "copy")
    life.ready()
    shell.run_until(lambda: life.state is State.SERVING and not observer.image.brokers[NodeId(2)].is_fenced)
    note()
    taken = played_broker(server, 2)
    taken.run_until(lambda: DUPLICATE in taken.answers)
    refused = [
        played_broker(server, 3, features=[Feature(name="metadata.version", max_supported_version=30)]),
        played_broker(server, 3, cluster_id="another"),
    ]
    for each in refused:
        each.run_until(lambda each=each: each.lifecycle.state is State.REFUSED)  # type: ignore[misc]  # a default
    life.stop(monotonic_ms())
    shell.run_until(lambda: life.state is State.STOPPED and observer.image.brokers[NodeId(2)].is_fenced)
    note()
    late = played_broker(server, 2)
    late.run_until(lambda: late.observer.last_offset >= observer.last_offset, is_alive=False)
    for each in [shell, late, taken, *refused]:
        each.close()
    refusals = [each.lifecycle.refusal for each in refused]
    return Session(copy, json.loads(run.stdout), life.epoch, observed, late, lives, refusals)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    require("kafka")
    folder = tmp_path_factory.mktemp("kafka")
    server = KafkaServer(folder, properties=SETTINGS)
    try:
        return play(server.start(), folder)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def image(session: Session) -> Image:
    loaded = load_image(session.data_dir)
    assert loaded.is_complete
    return loaded.image


def test_topics_and_partitions(image: Image, session: Session) -> None:
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
    assert ours == session.said["topics"]
    assert ours.keys() == {"orders", "moved", "gone", "__transaction_state"}
    assert ours["moved"]["partitions"][0]["adding"] == [2]  # type: ignore[index]  # a dict of lists


def test_settings(image: Image, session: Session) -> None:
    for name, expected in session.said["settings"].items():
        kind, _, resource = name.partition(":")
        assert image.settings.get(ConfigResource(int(kind), resource), {}) == expected
    assert image.topic_settings("orders") == {"cleanup.policy": "compact", "segment.bytes": "2000000"}
    assert image.topic_settings("gone") == {}


def test_features(image: Image, session: Session) -> None:
    levels = {name: level for name, level in session.said["features"].items() if level > 0}
    assert levels.pop("kraft.version") == 1
    assert image.features == levels


def test_brokers_and_controllers(image: Image, session: Session) -> None:
    ours = {}
    for broker_id, broker in image.brokers.items():
        endpoint = broker.listeners["PLAINTEXT"]
        address = f"{endpoint.host}:{endpoint.port}"
        ours[str(broker_id)] = {"address": address, "rack": broker.rack, "fenced": broker.is_fenced}
    assert ours == session.said["brokers"]
    assert image.brokers[NodeId(2)].epoch == session.epoch_of_2
    assert list(image.controllers) == session.said["voters"] == [1]


def test_quotas_credentials_acls_and_producer_ids(image: Image, session: Session) -> None:
    quotas = [[dict(entity), values] for entity, values in image.quotas.items()]
    assert sorted(quotas, key=repr) == sorted(
        ([dict(sorted(e.items())), v] for e, v in session.said["quotas"]), key=repr
    )
    users = [[user.name, user.mechanism, record.iterations] for user, record in image.scram.items()]
    assert sorted(users) == sorted(session.said["users"])
    acls = [
        [
            *(acl.resource_type, acl.resource_name, acl.pattern_type),
            *(acl.principal, acl.host, acl.operation, acl.permission_type),
        ]
        for acl in image.acls.values()
    ]
    assert sorted(acls) == sorted(session.said["acls"])
    assert image.next_producer_id == 1000


def test_the_log_from_its_beginning_and_every_snapshot_lead_to_the_same_image(image: Image, session: Session) -> None:
    folder = session.data_dir / "__cluster_metadata-0"
    snapshots = snapshot_files(folder)
    assert len(snapshots) > 2
    for name, path in [*snapshots.items(), (None, None)]:
        replay = Replay(decode_checkpoint(path.read_bytes()).image) if path is not None else Replay()
        for segment in segment_files(folder):
            for record in records_of(segment, name.end_offset if name is not None else 0):
                replay.apply(record.known())
        assert replay.image() == image


def test_kafkas_own_tool_reads_our_snapshot_and_shows_the_log_as_we_do(
    image: Image, session: Session, tmp_path: Path
) -> None:
    folder = session.data_dir / "__cluster_metadata-0"
    newest = max(snapshot_files(folder).items())[1]
    quorum = decode_checkpoint(newest.read_bytes()).quorum
    path = tmp_path / f"{999:020d}-{5:010d}.checkpoint"
    path.write_bytes(encode_checkpoint(Checkpoint(image, quorum, 1), epoch=5, timestamp_ms=2))
    (segment,) = segment_files(folder)
    dump = dump_files([path, segment], "--cluster-metadata-decoder")
    assert dump.complaints() == []
    first, second = dump.stdout.split(f"Dumping {segment}")
    of_snapshot = payloads(first)
    assert len(of_snapshot) == len(list(image_records(image)))
    names = {record["data"]["name"] for record in of_snapshot if record["type"] == "TOPIC_RECORD"}
    assert names == set(image.topic_ids)
    assert without_keys(payloads(second)) == [metadata_record(value) for value in record_values(segment)]


def without_keys(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The keys of users, which Kafka shows, are left out by us."""
    for record in records:
        if record["type"] == "USER_SCRAM_CREDENTIAL_RECORD":
            for name in ("salt", "storedKey", "serverKey"):
                del record["data"][name]
    return records


def payloads(dump: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition("payload: ")[2]) for line in dump.splitlines() if 'payload: {"type"' in line]


def record_values(segment: Path) -> list[bytes]:
    data = segment.read_bytes()
    batches = [position for position, header in iter_headers(data) if not header.is_control]
    return [record.value or b"" for position in batches for record in decode_records(data, position)]


def test_an_observer_has_the_same_image_as_the_folder(image: Image, session: Session) -> None:
    assert session.observed == image


def test_an_observer_that_comes_late_begins_with_a_snapshot(session: Session) -> None:
    assert any(isinstance(answer, FetchSnapshotResponse) for answer in session.late.answers)
    stopped = session.late.observer.image
    assert stopped.brokers[NodeId(2)].is_fenced
    assert stopped.topics.keys() == session.observed.topics.keys()
    assert session.late.observer.quorum.voters is not None
    assert session.late.updates[0].delta.topics.keys() == stopped.topics.keys()


def test_a_broker_is_registered_unfenced_and_let_go(session: Session) -> None:
    assert session.lives == [(State.RECOVERING, True), (State.SERVING, False), (State.STOPPED, True)]


def test_who_may_not_register_is_told_why(session: Session) -> None:
    features, cluster = session.refusals
    assert features is not None and "transaction.version is at level 2, supported are 0 to 0" in features
    assert cluster is not None and "not of cluster another" in cluster
