"""What administrators have changed by requests that controllers decided: for the audit log, and for warnings.

The broker that passed a request on tells it, because it knows the client, and because controllers can be Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from oncelog.controller.acl_changes import acl_of, acl_of_record
from oncelog.core.config import ConfigError, ConfigTable
from oncelog.core.config_resources import AlterOperation, ResourceType
from oncelog.core.errors import KafkaError
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import known_settings
from oncelog.protocol.api_keys import ApiKey
from oncelog.security.acl import Acl, Resource
from oncelog.security.scram import ScramMechanism
from oncelog.server.config_resources import warn_of_no_effect
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.server.broker import Broker
    from oncelog.server.context import RequestContext

log = logging.getLogger("oncelog.server")

HIDDEN: Final = "(hidden)"
_MECHANISMS: Final = {int(mechanism): mechanism.sasl_name for mechanism in ScramMechanism}


def report(broker: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    """`answer` is that of a controller."""
    tell = _REPORTS.get(context.api_key or 0)
    if tell is None or getattr(request, "validate_only", False):
        return
    try:
        yield from tell(broker, context, request, answer)
    except Exception:
        # What was changed is changed: the client has to know.
        log.exception("changes by a request with API key %s could not be written to the audit log", context.api_key)


def _created(broker: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    wanted = {topic.name: topic for topic in request.topics}
    for result in answer.topics:
        if result.error_code or result.name not in wanted:
            continue
        # Who may not describe the topic is not told its size.
        count = f" with {result.num_partitions} partition(s)" if result.num_partitions > 0 else ""
        context.tell_change("TOPIC", result.name, f"created{count}")
        yield
        given = {config.name: config.value for config in wanted[result.name].configs if config.value is not None}
        _warn(broker, TOPIC_CONFIG, f"topic {result.name}", given)


def _deleted(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    for result in answer.responses:
        if not result.error_code:
            context.tell_change("TOPIC", result.name or str(result.topic_id), "deleted")
            yield


def _grown(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    counts = {topic.name: topic.count for topic in request.topics}
    for result in answer.results:
        if not result.error_code and result.name in counts:
            context.tell_change("TOPIC", result.name, f"has {counts[result.name]} partition(s) now")
            yield


def _configured(broker: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    changed = {(each.resource_type, each.resource_name) for each in answer.responses if not each.error_code}
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        if (kind, name) not in changed:
            continue
        is_topic = kind == ResourceType.TOPIC
        table = TOPIC_CONFIG if is_topic else broker.broker_settings.table
        detail = ", ".join(_change(table, config) for config in resource.configs) or "the defaults"
        verb = "settings are now" if context.api_key == ApiKey.ALTER_CONFIGS else "settings changed"
        context.tell_change(_name(ResourceType, kind), name, f"{verb}: {detail}")
        yield
        if kind in (ResourceType.TOPIC, ResourceType.BROKER):
            whose = f"{'topic' if is_topic else 'broker'} {name}".strip()
            _warn(broker, table, whose, {config.name: config.value for config in resource.configs if _is_set(config)})


def _name(kind: type[IntEnum], number: int) -> str:
    """Controllers may be newer, and know what this broker does not."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _is_set(config: Any) -> bool:
    return config.value is not None and getattr(config, "config_operation", AlterOperation.SET) == AlterOperation.SET


def _change(table: ConfigTable, config: Any) -> str:
    operation = getattr(config, "config_operation", AlterOperation.SET)
    if operation == AlterOperation.DELETE or config.value is None:
        return f"{config.name} removed"
    sign = {AlterOperation.APPEND: "+=", AlterOperation.SUBTRACT: "-="}.get(operation, "=")
    return f"{config.name}{sign}{config.value if _may_be_shown(table, config.name) else HIDDEN}"


def _may_be_shown(table: ConfigTable, name: str) -> bool:
    """Settings of other brokers' plug-ins may be secrets."""
    try:
        return not table.key(name).sensitive
    except ConfigError:
        return False


def _warn(broker: Broker, table: ConfigTable, whose: str, given: Mapping[str, str]) -> None:
    warn_of_no_effect(whose, table.parse(known_settings(table, given, whose)), broker.settings)


def _limited(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    failed = set()
    for entry in answer.entries:
        if entry.error_code:
            failed.add(_entity(entry))
        yield
    for entry in request.entries:
        yield
        if _entity(entry) in failed:
            continue
        name = ", ".join(f"{kind} {name or '(default)'}" for kind, name in _entity(entry))
        for change in entry.ops:
            context.tell_change("QUOTA", name, f"{change.key} is {'removed' if change.remove else f'{change.value:g}'}")
            yield


def _entity(entry: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity))


def _users(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    changed = {result.user for result in answer.results if not result.error_code}
    for done, users in (("set", request.upsertions), ("deleted", request.deletions)):
        for user in users:
            if user.name in changed:
                mechanism = _MECHANISMS.get(user.mechanism, str(user.mechanism))
                context.tell_change("USER", user.name, f"{done} its {mechanism} credential")
                yield


def _acls_added(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    done = zip(request.creations, answer.results, strict=True)
    yield from _tell_of_acls(context, [_acl(acl_of, each) for each, result in done if not result.error_code], "added")


def _acls_deleted(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    found = [each for result in answer.filter_results if not result.error_code for each in result.matching_acls]
    gone = (_acl(acl_of_record, each) for each in found if not each.error_code)
    yield from _tell_of_acls(context, dict.fromkeys(gone), "deleted")


def _acl(read: Callable[[Any], Acl], given: Any) -> tuple[str, str, str]:
    """Kind and name of the resource, and all that the ACL says."""
    try:
        acl = read(given)
    except KafkaError:
        return _name(Resource, given.resource_type), given.resource_name, f"an ACL that is not known here: {given}"
    return acl.resource.name, acl.name, str(acl)


def _tell_of_acls(context: RequestContext, acls: Iterable[tuple[str, str, str]], done: str) -> Steps[None]:
    for kind, name, text in acls:
        context.tell_change(kind, name, f"{done} {text}")
        yield


def _features(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    failed = {result.feature for result in answer.results if result.error_code}
    for update in request.feature_updates if not answer.error_code else ():
        if update.feature not in failed:
            context.tell_change("FEATURE", update.feature, f"has level {update.max_version_level} now")
            yield


def _reassigned(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    results = ((topic.name, each) for topic in answer.responses for each in topic.partitions)
    failed = {(name, each.partition_index) for name, each in results if each.error_code}
    for topic in request.topics if not answer.error_code else ():
        for each in topic.partitions:
            if (topic.name, each.partition_index) not in failed:
                place = "stays where it is" if each.replicas is None else f"moves to brokers {each.replicas}"
                context.tell_change("TOPIC", topic.name, f"partition {each.partition_index} {place}")
                yield


def _elected(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    """Partitions that have another leader now. An unclean election may have cost records."""
    kind = "an unclean" if request.election_type else "the preferred"
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            if not each.error_code:
                context.tell_change("TOPIC", topic.topic, f"partition {each.partition_id} got {kind} leader")
                yield


def _unregistered(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    if not answer.error_code:
        context.tell_change("BROKER", str(request.broker_id), "unregistered")
        yield


def _voter_added(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    if not answer.error_code:
        context.tell_change("CONTROLLER", str(request.voter_id), "has a vote now")
        yield


def _voter_removed(_: Broker, context: RequestContext, request: Any, answer: Any) -> Steps[None]:
    if not answer.error_code:
        context.tell_change("CONTROLLER", str(request.voter_id), "has no vote any more")
        yield


_REPORTS: Final[dict[int, Callable[[Broker, RequestContext, Any, Any], Steps[None]]]] = {
    ApiKey.CREATE_TOPICS: _created,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _grown,
    ApiKey.ALTER_CONFIGS: _configured,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configured,
    ApiKey.ALTER_CLIENT_QUOTAS: _limited,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.CREATE_ACLS: _acls_added,
    ApiKey.DELETE_ACLS: _acls_deleted,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.UNREGISTER_BROKER: _unregistered,
    ApiKey.ADD_RAFT_VOTER: _voter_added,
    ApiKey.REMOVE_RAFT_VOTER: _voter_removed,
}
