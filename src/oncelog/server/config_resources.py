"""The resources of the config APIs: topics and brokers. Describing and changing them, one way for three API keys."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata import topic_subject
from oncelog.cluster.metadata_entries import broker_config_entry, topic_config_entry
from oncelog.cluster.topic_settings import NotDynamicError, Source, Synonym, dynamic_settings
from oncelog.cluster.topics import check_configs, check_name
from oncelog.core.config import ConfigError, ConfigKey, ConfigTable, ConfigType, Settings, format_value
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise, gather
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.protocol.messages.alter_configs import AlterConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalAlterConfigsResource,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, one_by_one

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

R = TypeVar("R")
S = TypeVar("S", AlterConfigsResource, IncrementalAlterConfigsResource)


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class AlterOp(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    key: ConfigKey
    value: str | None
    source: Source
    read_only: bool
    synonyms: list[Synonym]


def authorize(context: RequestContext, operation: Operation, resource_type: int, name: str) -> None:
    if resource_type == ResourceType.TOPIC:
        context.require(operation, Resource.TOPIC, name)
    else:
        context.require(operation, Resource.CLUSTER)


def named_twice() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def describe(broker: Broker, resource_type: int, name: str, wanted: Iterable[str] | None) -> list[DescribedConfig]:
    names = None if wanted is None else set(wanted)
    if resource_type == ResourceType.TOPIC:
        check_name(name)
        topic = broker.topics.require(name)
        keys = list(TOPIC_CONFIG)
        read_only = False
    elif resource_type == ResourceType.BROKER:
        _check_node(broker, name, describing=True)
        topic = None
        keys = [*broker.broker_settings.table, *broker.broker_settings.keys_without_effect()]
        read_only = True
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")
    described = []
    for key in keys:
        if key.internal or (names is not None and key.name not in names):
            continue
        synonyms = (
            broker.broker_settings.synonyms(key)
            if topic is None
            else broker.broker_settings.topic_synonyms(key, topic.configs)
        )
        if key.sensitive:
            synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
        first = synonyms[0] if synonyms else Synonym(key.name, format_value(key.default), Source.DEFAULT)
        described.append(
            DescribedConfig(
                key,
                first.value,
                first.source,
                read_only and (not key.dynamic or key.name in broker.broker_settings.pinned),
                synonyms,
            )
        )
    return described


def alter_each(
    resources: Sequence[S], alter: Callable[[S], Promise[KafkaError | None]], result: Callable[..., R]
) -> Steps[Promise[list[R]]]:
    """Alters each resource and makes its `result`. A resource that is named more than once is refused, once."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)

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

    once = {(resource.resource_type, resource.resource_name): resource for resource in resources}
    return gather((yield from one_by_one(answer, once.values())))


def replace(
    broker: Broker, context: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Promise[KafkaError | None]:
    """AlterConfigs: what is not named falls back to its default."""
    entries = {config.name: config.value for config in resource.configs}

    def given() -> Mapping[str, str]:
        present = {key: value for key, value in entries.items() if value is not None}
        if len(present) < len(entries):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Null value not supported: leave a key out to get its default.")
        return present

    return _propose(broker, context, resource, given, validate_only)


def change(
    broker: Broker, context: RequestContext, resource: IncrementalAlterConfigsResource, validate_only: bool
) -> Promise[KafkaError | None]:
    """IncrementalAlterConfigs: set, delete, append to and subtract from what is there."""
    resource_type, name = resource.resource_type, resource.resource_name

    def changed() -> Mapping[str, str]:
        names = [config.name for config in resource.configs]
        if len(set(names)) < len(names):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        configs = dict(_current(broker, resource_type, name))
        table = TOPIC_CONFIG if resource_type == ResourceType.TOPIC else broker.broker_settings.table
        for config in resource.configs:
            _change_one(broker, table, configs, config.name, config.config_operation, config.value)
        return configs

    return _propose(broker, context, resource, changed, validate_only)


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


def _change_one(
    broker: Broker, table: ConfigTable, configs: dict[str, str], name: str, operation: int, value: str | None
) -> None:
    try:
        key = table.key(name)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if operation == AlterOp.DELETE:
        configs.pop(name, None)
        return
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation == AlterOp.SET:
        configs[name] = value
    elif operation in (AlterOp.APPEND, AlterOp.SUBTRACT):
        if key.type is not ConfigType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Config value append or subtract is not allowed for config key: {name}"
            )
        inherited = broker.broker_settings.topic_settings({}).words(name) if table is TOPIC_CONFIG else ()
        present = _words(configs[name]) if configs.get(name) else list(inherited)
        given = _words(value)
        if operation == AlterOp.APPEND:
            present += [word for word in given if word not in present]
        else:
            present = [word for word in present if word not in given]
        configs[name] = ",".join(present)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation} for config key {name}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _current(broker: Broker, resource_type: int, name: str) -> Mapping[str, str]:
    if resource_type == ResourceType.TOPIC:
        check_name(name)
        return broker.topics.require(name).configs
    if resource_type == ResourceType.BROKER:
        _check_node(broker, name, describing=False)
        return broker.metadata.broker_configs.get(name, {})
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")


def _topic_entry(_: Broker, name: str, configs: Mapping[str, str], validate_only: bool) -> JournalEntry:
    checked = check_configs(configs)
    if not validate_only:
        warn_of_no_effect(f"topic {name}", TOPIC_CONFIG.parse(checked))
    return topic_config_entry(name, checked)


def _broker_entry(broker: Broker, name: str, configs: Mapping[str, str], validate_only: bool) -> JournalEntry:
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
    if not validate_only:
        warn_of_no_effect(f"broker {name}".strip(), settings)
    return broker_config_entry(name, configs)


def warn_of_no_effect(resource: str, settings: Settings) -> None:
    for warning in settings.warnings:
        log.warning("%s: %s", resource, warning)


def _check_node(broker: Broker, name: str, describing: bool) -> None:
    if name == "" and not describing:
        return
    if name not in ("", str(broker.node_id)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
