"""Apache Kafka starts on the folder of one node with its own controller, and the node on what Kafka left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Consumer, Producer
from oncelog.client.admin import Admin
from oncelog.client.admin_configs import ConfigResource
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition, uuid_to_text
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.server import controller_node
from peers.kafka.dump import check_data_dir
from peers.kafka.jars import run_java
from peers.kafka.kafka import KafkaServer
from tests.conformance.conftest import require
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import commit, committed
from tests.unit.server.test_lost_tails import ID, Client
from tests.virtual_clock import VirtualScheduler
from tests.waiting import wait_until

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}
PARTITION = TopicPartition("t", 1)
OPEN_MS = 600_000
"""A transaction is open for so long; Apache Kafka starts meanwhile."""


def begin(folder: Path) -> BrokerInProcess:
    clock = VirtualScheduler(int(time.time() * 1000))
    return BrokerInProcess(folder, SETTINGS, clock=clock)


def init(node: BrokerInProcess, transactional_id: str) -> int:
    answer = node.call(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
    assert answer.error_code == ErrorCode.NONE
    return int(answer.producer_id)


def fill(node: BrokerInProcess) -> None:
    node.create("t", 2, retention_ms="-1")
    assert node.produce("t", [b"one", b"two"], partition=1).error_code == ErrorCode.NONE
    commit(node, "readers", 1, 1)
    init(node, "id")
    node.create("cut")
    for value in (b"deleted", b"deleted", b"kept"):
        assert node.produce("cut", [value]).error_code == ErrorCode.NONE
    gone = DeleteRecordsTopic(name="cut", partitions=[DeleteRecordsPartition(offset=2)])
    node.call(DeleteRecordsRequest(topics=[gone], timeout_ms=1000), 2)
    begun = Client(node, tv2=True, topic="t")
    assert begun.init(OPEN_MS) == 0
    assert begun.produce(b"open")
    user = ScramCredentialUpsertion(name="eve", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32)
    acl = AclCreation(
        resource_type=2, resource_name="t", principal="User:eve", host="*", operation=4, permission_type=3
    )
    limit = EntryData(
        entity=[EntityData(entity_type="user", entity_name="eve")], ops=[OpData(key="producer_byte_rate", value=1e6)]
    )
    for request, version in [
        (AlterUserScramCredentialsRequest(upsertions=[user]), 0),
        (CreateAclsRequest(creations=[acl]), 3),
        (AlterClientQuotasRequest(entries=[limit]), 1),
    ]:
        node.call(request, version)
    decide(node)


def decide(node: BrokerInProcess) -> None:
    """A transaction that is committed, without a marker if the next turn of the loop does not come any more."""
    producer_id = init(node, "decided")
    batch = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    assert (
        node.produce("cut", [b"decided"], version=12, transactional_id="decided", **batch).error_code == ErrorCode.NONE
    )
    commit = EndTxnRequest(transactional_id="decided", producer_id=producer_id, producer_epoch=0, committed=True)
    assert node.send(commit, 5).value.error_code == ErrorCode.NONE


def committed_values(servers: str, topic: str, count: int) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": f"readers of {topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    found: list[bytes | None] = []
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: found.extend(record.value for record in consumer.poll(500)) or len(found) >= count)
    return found


def told_by_kafka(servers: str) -> dict[str, Any]:
    with Admin({"bootstrap.servers": servers}) as admin:
        topics = admin.list_topics(internal=True)
        settings = admin.describe_configs(ConfigResource(ResourceType.TOPIC, "t"))
        wait_until(lambda: PARTITION in admin.group_offsets("readers"))
        return {
            "topics": {name: topic.topic_id for name, topic in topics.items()},
            "retention": settings["retention.ms"].value,
            "users": list(admin.describe_user_scram_credentials()),
            "acls": [acl.name for acl in admin.describe_acls()],
            "quotas": [dict(quotas.entity) for quotas in admin.describe_client_quotas()],
            "offset": admin.group_offsets("readers")[PARTITION].offset,
            "end": admin.list_offsets({PARTITION: -1})[PARTITION].offset,
        }


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_apache_kafka_goes_on_with_the_folder_and_the_node_with_what_kafka_left(tmp_path: Path, clean: bool) -> None:
    require("kafka")
    node = begin(tmp_path / "data")
    fill(node)
    ids = {topic.name: topic.topic_id for topic in node.broker.metadata.topics.values()}
    assert ids.keys() == {"t", "cut", *INTERNAL_TOPICS}
    cut = node.broker.partitions.get("cut", 0)
    assert (cut.last_stable_offset, cut.high_watermark) == (3, 4), "decided, and without a marker"
    node.stop(clean=clean)
    if clean:
        assert check_data_dir(tmp_path / "data") == []
    # Only the broker of before, if it was killed, is to be fenced: see below what that does.
    session = {} if clean else {"broker.session.timeout.ms": "9000"}
    kafka = KafkaServer(tmp_path, properties={**SETTINGS, **session})
    kafka.voters = kafka.voter
    with kafka:
        expected = {"topics": ids, "retention": "-1", "users": ["eve"], "acls": ["t"], "quotas": [{"user": "eve"}]}
        assert told_by_kafka(kafka.bootstrap_servers) == {**expected, "offset": 1, "end": 2}
        # After a kill Kafka may lose the commit: no partition has a leader when it fences the broker of before, and
        # Kafka 4.3 takes that for a topic that was deleted. It writes no marker, and calls the transaction complete.
        values = [b"kept", b"decided"][: 2 if clean else 1]
        assert committed_values(kafka.bootstrap_servers, "cut", len(values))[: len(values)] == values
        with Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "id"}) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"three", partition=1)
        with Admin({"bootstrap.servers": kafka.bootstrap_servers}) as admin:
            admin.create_topics(["by-kafka"])
            (found,) = admin.describe_transactions([ID]).values()
            assert (found.state, list(found.partitions)) == ("Ongoing", [TopicPartition("t", 0)])
        with Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": ID}) as successor:
            successor.init_transactions()
    node = begin(tmp_path / "data")
    assert node.produce("t", [b"next"], partition=0).base_offset == 2, "behind the open record and its marker"
    found = {topic.name: topic.topic_id for topic in node.broker.metadata.topics.values()}
    assert {name: found[name] for name in ids} == ids
    assert "by-kafka" in found
    assert node.produce("t", [b"four"], partition=1).base_offset == 4, "behind Kafka's record and its marker"
    assert committed(node, "readers")[1] == 1
    assert node.broker.partitions.get("cut", 0).log_start_offset == 2, "what was deleted does not come back"
    metadata = node.broker.metadata
    assert [user.name for user in metadata.users] == ["eve"]
    assert [(acl.principal, acl.name) for acl in metadata.acls] == [("User:eve", "t")]
    assert metadata.quotas == {(("user", "eve"),): {"producer_byte_rate": 1e6}}
    node.stop()


def test_the_metadata_shell_of_apache_kafka_reads_the_log_and_its_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("kafka")
    node = begin(tmp_path)
    fill(node)
    topic_id = uuid_to_text(node.broker.metadata.topics["t"].topic_id)
    folder = tmp_path / "__cluster_metadata-0"
    check_by_shell(folder / "00000000000000000000.log", topic_id)
    monkeypatch.setattr(controller_node, "SNAPSHOT_BATCHES", 1)
    node.create("last", 1)
    node.stop()
    check_by_shell(max(folder.glob("*.checkpoint")), topic_id)


def check_by_shell(file: Path, topic_id: str) -> None:
    expected = {
        f"/image/topics/byId/{topic_id}/1",
        "/image/topics/byName/t/1",
        "/image/configs/TOPIC:t/retention.ms",
        "/image/scram/SCRAM-SHA-256/eve",
        "/image/clientQuotas/user(eve)/producer_byte_rate",
        "/image/cluster/brokers/1",
    }
    paths: list[str] = []

    def has_all() -> bool:
        paths[:] = told_by_shell(file, "find", "/image").split()
        return expected <= set(paths)

    # On a busy machine the shell runs its command before it has read the file to its end.
    wait_until(has_all, f"{file} does not show all of {expected}")
    assert [path for path in paths if path.startswith("/image/acls/byId/")], file
    wait_until(lambda: "leader=1," in told_by_shell(file, "cat", "/image/topics/byName/t/1"))


def told_by_shell(file: Path, *command: str) -> str:
    """What one command of the shell prints. What it cannot read it logs, as it does the ends of every snapshot."""
    done = run_java("org.apache.kafka.shell.MetadataShell", "--snapshot", str(file), *command)
    errors = [line for line in done.stderr.splitlines() if "Ignoring control record with type SNAPSHOT_" not in line]
    assert (done.returncode, errors) == (0, []), file
    return done.stdout
