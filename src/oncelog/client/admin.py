"""Managing a cluster: topics, settings, groups, offsets, transactions, producers, brokers.

`AsyncAdmin` is for asyncio programs, `Admin` is the same for everybody else. Every call is retried while that helps,
bounded by `default_api_timeout_ms`, and raises KafkaError with the first failure that lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from oncelog.client.admin_cluster import (
    ClusterAdmin,
    ClusterDescription,
    LogDirectory,
    QuorumDescription,
    QuorumReplica,
    Reassignment,
)
from oncelog.client.admin_configs import ConfigAdmin, ConfigEntry, ConfigResource
from oncelog.client.admin_groups import GroupAdmin, GroupDescription, GroupListing, MemberDescription
from oncelog.client.admin_security import ClientQuotas, ScramDeletion, ScramUpsertion, SecurityAdmin
from oncelog.client.admin_topics import NewTopic, OffsetResult, TopicAdmin
from oncelog.client.admin_transactions import (
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from oncelog.client.blocking import Blocking, blocking
from oncelog.client.config import ClientConfig
from oncelog.client.connections import open_cluster
from oncelog.core.config_resources import ConfigSource, ResourceType
from oncelog.protocol.messages.list_offsets import OffsetSpec
from oncelog.security.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ScramMechanism

__all__ = [
    "Acl",
    "AclFilter",
    "Admin",
    "AsyncAdmin",
    "ClientQuotas",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "GroupDescription",
    "GroupListing",
    "LogDirectory",
    "MemberDescription",
    "NewTopic",
    "OffsetResult",
    "OffsetSpec",
    "Operation",
    "Pattern",
    "Permission",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumReplica",
    "Reassignment",
    "Resource",
    "ResourceType",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "TransactionDescription",
    "TransactionListing",
]


def _parsed(config: Mapping[str, Any]) -> ClientConfig:
    """A topic is not created because somebody asks for its offsets."""
    without = config if not isinstance(config, Mapping) else {"allow.auto.create.topics": False, **config}
    return ClientConfig.parse(without)


class AsyncAdmin(TopicAdmin, ConfigAdmin, GroupAdmin, TransactionAdmin, ClusterAdmin, SecurityAdmin):
    """The admin client for asyncio programs: the calls of `Admin`, to be awaited.

    Use it as `async with AsyncAdmin.connect(config) as admin`.
    """

    @classmethod
    def connect(cls, config: Mapping[str, Any] | ClientConfig) -> Self:
        """A client for the cluster that `config` names; connections are made when they are needed."""
        return cls(open_cluster(config if isinstance(config, ClientConfig) else _parsed(config)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()


class Admin(Blocking):
    """The admin client whose calls block."""

    def __init__(self, config: Mapping[str, Any] | ClientConfig | Blocking) -> None:
        super().__init__(config if isinstance(config, ClientConfig | Blocking) else _parsed(config))
        self.core = AsyncAdmin(self.cluster)

    create_topics = blocking(AsyncAdmin.create_topics)
    ensure_topic = blocking(AsyncAdmin.ensure_topic)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    list_offsets = blocking(AsyncAdmin.list_offsets)
    delete_records = blocking(AsyncAdmin.delete_records)

    describe_configs = blocking(AsyncAdmin.describe_configs)
    alter_configs = blocking(AsyncAdmin.alter_configs)

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    group_offsets = blocking(AsyncAdmin.group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)
    remove_members = blocking(AsyncAdmin.remove_members)

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transactions = blocking(AsyncAdmin.describe_transactions)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    fence_producers = blocking(AsyncAdmin.fence_producers)
    force_terminate_transaction = blocking(AsyncAdmin.force_terminate_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)

    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    describe_quorum = blocking(AsyncAdmin.describe_quorum)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    reassign_partitions = blocking(AsyncAdmin.reassign_partitions)
    list_reassignments = blocking(AsyncAdmin.list_reassignments)
    eligible_leaders = blocking(AsyncAdmin.eligible_leaders)
    unregister_broker = blocking(AsyncAdmin.unregister_broker)
    update_features = blocking(AsyncAdmin.update_features)

    describe_user_scram_credentials = blocking(AsyncAdmin.describe_user_scram_credentials)
    alter_user_scram_credentials = blocking(AsyncAdmin.alter_user_scram_credentials)
    create_acls = blocking(AsyncAdmin.create_acls)
    describe_acls = blocking(AsyncAdmin.describe_acls)
    delete_acls = blocking(AsyncAdmin.delete_acls)
    describe_client_quotas = blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = blocking(AsyncAdmin.alter_client_quotas)
