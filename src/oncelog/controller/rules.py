"""What a controller decides on request, by API key. What concerns the life of brokers is in `controller.machine`.

A start of one node needs nothing of it, so it is imported with the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oncelog.controller.acl_changes import create_acls, delete_acls
from oncelog.controller.config_changes import alter_incrementally, replace_all
from oncelog.controller.decision import Deciding, Decision, Requester
from oncelog.controller.directory_assignments import assign_replicas
from oncelog.controller.feature_changes import update_features
from oncelog.controller.in_sync_changes import alter_partitions
from oncelog.controller.leader_elections import elect_leaders
from oncelog.controller.producer_id_blocks import allocate_producer_ids
from oncelog.controller.quota_changes import alter_quotas
from oncelog.controller.reassignments import alter_reassignments, list_reassignments
from oncelog.controller.scram_changes import alter_credentials
from oncelog.controller.topic_changes import TopicChanges
from oncelog.controller.view import View
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.update_features import UpdateFeaturesRequest

if TYPE_CHECKING:
    from oncelog.controller.machine import Machine

Rule = Callable[["Machine", View, Any, Requester], Decision | Deciding]


def _topics(machine: Machine, view: View, who: Requester) -> TopicChanges:
    return TopicChanges(view, who, machine.new_uuid, machine.below, is_alone=machine.config.is_alone)


def _features(machine: Machine, view: View, request: UpdateFeaturesRequest, who: Requester) -> Decision:
    return update_features(view, request, who.api_version, machine.config.features, machine.kraft_version)


RULES: Final[dict[int | None, Rule]] = {
    ApiKey.CREATE_TOPICS: lambda machine, view, request, who: _topics(machine, view, who).create(request),
    ApiKey.CREATE_PARTITIONS: lambda machine, view, request, who: _topics(machine, view, who).grow(request),
    ApiKey.DELETE_TOPICS: lambda machine, view, request, who: _topics(machine, view, who).delete(request),
    ApiKey.ALTER_PARTITION: lambda _, view, request, who: alter_partitions(view, request, who),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: lambda _, view, request, who: assign_replicas(view, request),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda _, view, request, who: allocate_producer_ids(view, request),
    ApiKey.ELECT_LEADERS: lambda _, view, request, who: elect_leaders(view, request),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda _, view, request, who: alter_reassignments(view, request),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda _, view, request, who: list_reassignments(view, request),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda _, view, request, who: alter_incrementally(view, request, who),
    ApiKey.ALTER_CONFIGS: lambda _, view, request, who: replace_all(view, request, who),
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.ALTER_CLIENT_QUOTAS: lambda _, view, request, who: alter_quotas(view, request),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda _, view, request, who: alter_credentials(view, request),
    ApiKey.CREATE_ACLS: lambda machine, view, request, who: create_acls(view, request, machine.new_uuid),
    ApiKey.DELETE_ACLS: lambda _, view, request, who: delete_acls(view, request),
}
