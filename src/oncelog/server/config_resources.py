"""Which changes of its own settings a broker refuses. `config_descriptions` describes settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog.controller.config_changes import change_setting, defaults_of, known_key
from oncelog.core.broker_config import warnings_of
from oncelog.core.config import ConfigError, Settings
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.topic_settings import BrokerSettings, NotDynamicError, dynamic_settings
from oncelog.protocol.messages.alter_configs import AlterConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalAlterConfigsResource,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.config_descriptions import other_node
from oncelog.server.context import RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")


def _changed(broker: Broker, resource: IncrementalAlterConfigsResource, stored: Mapping[str, str]) -> Mapping[str, str]:
    table, configs = broker.broker_settings.table, dict(stored)
    for config in resource.configs:
        known_key(table, config.name)
        change_setting(table, configs, config.name, config.config_operation, config.value, defaults_of(table))
    return configs


def refusal(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource | IncrementalAlterConfigsResource
) -> KafkaError | None:
    """Why settings of this broker are not passed on to a controller, which does not look at the values of brokers'."""
    name = resource.resource_name
    if resource.resource_type != ResourceType.BROKER:
        return None
    try:
        context.require(Operation.ALTER_CONFIGS, Resource.CLUSTER)
        if name not in ("", str(broker.node_id)):
            raise other_node(broker.node_id, name)
        stored = broker.metadata.broker_configs.get(name, {})
        named = {config.name: config.value for config in resource.configs}
        wanted: Mapping[str, str | None]
        wanted = named if isinstance(resource, AlterConfigsResource) else _changed(broker, resource, stored)
        configs = {key: value for key, value in wanted.items() if key in named and value is not None}
        _check(broker.broker_settings, stored, configs)
    except KafkaError as error:
        return error
    return None


def _check(settings: BrokerSettings, stored: Mapping[str, str], configs: Mapping[str, str]) -> None:
    try:
        dynamic_settings(settings.table, configs)
    except NotDynamicError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    pinned = settings.pinned & {key for key in configs if configs[key] != stored.get(key)}
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
