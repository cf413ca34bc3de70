"""Changes of the settings of topics and brokers, one way for two API keys. `config_descriptions` describes them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata import topic_subject
from oncelog.cluster.metadata_entries import broker_config_entry, topic_config_entry
from oncelog.controller.config_changes import change_setting, known_key, without_settings
from oncelog.controller.topic_rules import check_configs, check_name
from oncelog.core.broker_config import warnings_of
from oncelog.core.config import ConfigError, Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import NotDynamicError, dynamic_settings
from oncelog.protocol.messages.alter_configs import AlterConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalAlterConfigsResource,
)
from oncelog.server.authorization import Operation
from oncelog.server.config_descriptions import authorize, other_node
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps, one_by_one

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

R = TypeVar("R")
S = TypeVar("S", AlterConfigsResource, IncrementalAlterConfigsResource)


def named_twice() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def alter_each(
    resources: Sequence[S], alter: Callable[[S], Promise[KafkaError | None]], result: Callable[..., R]
) -> Steps[Promise[list[R]]]:
    """Alters each resource and makes its `result`. A resource that is named more than once is refused, once."""
    keys = yield from in_steps((resource.resource_type, resource.resource_name) for resource in resources)
    counts = Counter(keys)

    def answer(resource: S) -> Promise[R]:
        key = resource.resource_type, resource.resource_name
        changed = alter(resource) if counts[key] == 1 else Promise.resolved(named_twice())
        return changed.map(
            lambda error: result(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=key[0],
                resource_name=key[1],
            )
        )

    yield
    once = dict(zip(keys, resources, strict=True))
    yield
    return gather((yield from one_by_one(answer, once.values())))


def replace(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Promise[KafkaError | None]:
    """AlterConfigs: what is not named falls back to its default."""
    return _propose(broker, context, resource, lambda: _given(resource), validate_only)


def _given(resource: AlterConfigsResource) -> Mapping[str, str]:
    entries = {config.name: config.value for config in resource.configs}
    present = {key: value for key, value in entries.items() if value is not None}
    if len(present) < len(entries):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Null value not supported: leave a key out to get its default.")
    return present


def change(
    broker: Broker, context: RequestContext, resource: IncrementalAlterConfigsResource, validate_only: bool
) -> Promise[KafkaError | None]:
    """IncrementalAlterConfigs: set, delete, append to and subtract from what is there."""
    return _propose(broker, context, resource, lambda: _changed(broker, resource), validate_only)


def _changed(broker: Broker, resource: IncrementalAlterConfigsResource) -> Mapping[str, str]:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    configs = dict(_current(broker, resource.resource_type, resource.resource_name))
    table = TOPIC_CONFIG if resource.resource_type == ResourceType.TOPIC else broker.broker_settings.table
    words = broker.broker_settings.topic_settings({}).words
    for config in resource.configs:
        known_key(table, config.name)
        change_setting(
            table, configs, config.name, config.config_operation, config.value,
            words if table is TOPIC_CONFIG else lambda _: (),
        )  # fmt: skip
    return configs


def refusal(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource | IncrementalAlterConfigsResource
) -> KafkaError | None:
    """Why settings of this broker are not passed on to a controller: it stores those of brokers as they come."""
    name = resource.resource_name
    if resource.resource_type != ResourceType.BROKER:
        return None
    try:
        authorize(context, Operation.ALTER_CONFIGS, resource.resource_type, name)
        _current(broker, resource.resource_type, name)
        is_whole = isinstance(resource, AlterConfigsResource)
        wanted = _given(resource) if is_whole else _changed(broker, resource)  # type: ignore[arg-type]  # one of two
        named = {config.name for config in resource.configs}
        _check_broker_settings(broker, name, {key: value for key, value in wanted.items() if key in named})
    except KafkaError as error:
        return error
    return None


def _propose(
    broker: Broker,
    context: RequestContext,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    configs: Callable[[], Mapping[str, str]],
    validate_only: bool,
) -> Promise[KafkaError | None]:
    resource_type, name = resource.resource_type, resource.resource_name
    is_topic = resource_type == ResourceType.TOPIC
    try:
        authorize(context, Operation.ALTER_CONFIGS, resource_type, name)
    except KafkaError as error:
        return Promise.resolved(error)

    def decide() -> JournalEntry | None:
        wanted = configs()
        _current(broker, resource_type, name)
        entry_of = _topic_entry if is_topic else _broker_entry
        entry = entry_of(broker, name, wanted, validate_only)
        return None if validate_only else entry

    def record(error: KafkaError | None) -> KafkaError | None:
        if error is None and not validate_only:
            now = ", ".join(f"{key}={text}" for key, text in _current(broker, resource_type, name).items())
            context.tell_change("TOPIC" if is_topic else "BROKER", name, f"settings are now: {now or 'the defaults'}")
        return error

    return broker.metadata.propose(topic_subject(name) if is_topic else f"broker {name}", decide).map(record)


def _current(broker: Broker, resource_type: int, name: str) -> Mapping[str, str]:
    if resource_type == ResourceType.TOPIC:
        check_name(name)
        return broker.topics.require(name).configs
    if resource_type == ResourceType.BROKER:
        if name not in ("", str(broker.node_id)):
            raise other_node(broker.node_id, name)
        return broker.metadata.broker_configs.get(name, {})
    raise without_settings(resource_type)


def _topic_entry(broker: Broker, name: str, configs: Mapping[str, str], validate_only: bool) -> JournalEntry:
    checked = check_configs(configs)
    if not validate_only:
        warn_of_no_effect(f"topic {name}", TOPIC_CONFIG.parse(checked), broker.settings)
    return topic_config_entry(name, checked)


def _broker_entry(broker: Broker, name: str, configs: Mapping[str, str], validate_only: bool) -> JournalEntry:
    settings = _check_broker_settings(broker, name, configs)
    if not validate_only:
        warn_of_no_effect(f"broker {name}".strip(), settings, broker.settings)
    return broker_config_entry(name, configs)


def _check_broker_settings(broker: Broker, name: str, configs: Mapping[str, str]) -> Settings:
    current = broker.metadata.broker_configs.get(name, {})
    try:
        settings = dynamic_settings(broker.broker_settings.table, configs)
    except NotDynamicError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    pinned = broker.broker_settings.pinned & {key for key in configs if configs[key] != current.get(key)}
    if pinned:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{', '.join(sorted(pinned))}: set on the command line of the broker, which goes before this. Start it "
            "without that to change it here",
        )
    return settings


def warn_of_no_effect(resource: str, settings: Settings, roles: Settings) -> None:
    """`roles` are the settings of the broker: in a cluster, those about replicas have their effect."""
    for warning in warnings_of(settings, roles):
        log.warning("%s: %s", resource, warning)
