"""Which changes of its own settings a broker refuses. `config_descriptions` describes settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog.controller.config_changes import change_setting, known_key, without_settings
from oncelog.controller.topic_rules import check_name
from oncelog.core.broker_config import warnings_of
from oncelog.core.config import ConfigError, Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import NotDynamicError, dynamic_settings
from oncelog.protocol.messages.alter_configs import AlterConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalAlterConfigsResource,
)
from oncelog.server.authorization import Operation
from oncelog.server.config_descriptions import authorize, other_node
from oncelog.server.context import RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")


def _given(resource: AlterConfigsResource) -> Mapping[str, str]:
    entries = {config.name: config.value for config in resource.configs}
    present = {key: value for key, value in entries.items() if value is not None}
    if len(present) < len(entries):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Null value not supported: leave a key out to get its default.")
    return present


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


def _current(broker: Broker, resource_type: int, name: str) -> Mapping[str, str]:
    if resource_type == ResourceType.TOPIC:
        check_name(name)
        return broker.metadata.require(name).configs
    if resource_type == ResourceType.BROKER:
        if name not in ("", str(broker.node_id)):
            raise other_node(broker.node_id, name)
        return broker.metadata.broker_configs.get(name, {})
    raise without_settings(resource_type)


def _check_broker_settings(broker: Broker, name: str, configs: Mapping[str, str]) -> None:
    current = broker.metadata.broker_configs.get(name, {})
    try:
        dynamic_settings(broker.broker_settings.table, configs)
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


def warn_of_no_effect(resource: str, settings: Settings, roles: Settings) -> None:
    """`roles` are the settings of the broker: in a cluster, those about replicas have their effect."""
    for warning in warnings_of(settings, roles):
        log.warning("%s: %s", resource, warning)
