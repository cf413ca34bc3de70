"""Settings, quotas, ACLs and users that clients can make are bounded in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess

LONG = "0:0," * 8_000 + "1:1"
ATTEMPTS = 100
SETTINGS = {
    **FEW_PARTITIONS,
    "oncelog.metadata.max.bytes": "1048576",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path, SETTINGS)
    yield node
    node.broker.stop()


def new_topic(node: BrokerInProcess, number: int) -> int:
    configs = [CreatableTopicConfig(name="leader.replication.throttled.replicas", value=LONG)]
    topic = CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1, configs=configs)
    return int(node.call(CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code)


def new_quotas(node: BrokerInProcess, number: int, *, remove: bool = False) -> int:
    entries = [
        EntryData(
            entity=[EntityData(entity_type="user", entity_name=f"u{number}-{each}")],
            ops=[OpData(key="producer_byte_rate", value=1e9, remove=remove)],
        )
        for each in range(20)
    ]
    return int(node.call(AlterClientQuotasRequest(entries=entries), 1).entries[0].error_code)


def new_user(node: BrokerInProcess, number: int) -> int:
    user = ScramCredentialUpsertion(
        name=f"u{number}", mechanism=1, iterations=4096, salt=b"s" * 30_000, salted_password=b"p" * 32
    )
    return int(node.call(AlterUserScramCredentialsRequest(upsertions=[user]), 0).results[0].error_code)


def new_acls(node: BrokerInProcess, number: int) -> int:
    creations = [
        AclCreation(
            resource_type=2,
            resource_name=f"t{number}-{each}",
            resource_pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        for each in range(20)
    ]
    return int(node.call(CreateAclsRequest(creations=creations), 3).results[0].error_code)


@pytest.mark.parametrize("add", [new_topic, new_quotas, new_user, new_acls])
def test_what_clients_add_has_an_end(node: BrokerInProcess, add: Callable[[BrokerInProcess, int], int]) -> None:
    codes = [add(node, number) for number in range(ATTEMPTS)]
    assert set(codes) == {ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}
    assert codes[-1] == ErrorCode.POLICY_VIOLATION
    assert node.broker.metadata.image.entry_bytes <= 1 << 20


def test_there_is_room_again_and_for_what_is_needed(node: BrokerInProcess) -> None:
    taken = 0
    while new_quotas(node, taken) == ErrorCode.NONE:
        taken += 1
    node.create("t", 1)
    setting = AlterableConfig(name="log.retention.ms", value="100000000")
    own = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="1", configs=[setting])
    answer = node.call(IncrementalAlterConfigsRequest(resources=[own]), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE, "nobody shuts the operator out"
    assert "__consumer_offsets" not in node.broker.metadata.topics
    assert node.broker.internal_topic("__consumer_offsets") is not None
    node.clock.advance_ms(1_000)
    assert "__consumer_offsets" in node.broker.metadata.topics
    assert new_quotas(node, 0, remove=True) == ErrorCode.NONE
    assert new_quotas(node, taken) == ErrorCode.NONE


def test_the_estimate_is_the_same_after_a_start(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path, SETTINGS)
    for number in range(2):
        new_topic(node, number), new_quotas(node, number), new_user(node, number), new_acls(node, number)
    before = node.broker.metadata.image.entry_bytes
    node.broker.stop()
    again = BrokerInProcess(tmp_path, SETTINGS)
    assert again.broker.metadata.image.entry_bytes == before > 0
    again.broker.stop()
