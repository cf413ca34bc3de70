"""IncrementalAlterConfigs (44), AlterConfigs (33), and the settings of new topics.

The controller checks the settings of topics, which all brokers share. Those of brokers are checked by brokers: each
knows its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from oncelog.controller.decision import Deciding, Decision, Requester
from oncelog.controller.image import ConfigResource
from oncelog.controller.topic_rules import check_configs, check_name, unknown_topic
from oncelog.controller.view import MIN_ISR, View
from oncelog.core.config import ConfigError, ConfigTable, ConfigType
from oncelog.core.config_resources import AlterOperation, ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from oncelog.protocol.messages.cluster_metadata import ClearElrRecord, ConfigRecord
from oncelog.protocol.messages.create_topics import CreatableTopic
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalAlterConfigsResource,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalAlterConfigsResourceResponse,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from oncelog.protocol.schema import Message
from oncelog.security.acl import Operation, Resource

_VALUE_CHARS_MAX: Final = 2**15 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,10}")

Records = list[ConfigRecord]


def change_setting(
    table: ConfigTable,
    configs: dict[str, str],
    name: str,
    operation: int,
    value: str | None,
    inherited: Callable[[str], Iterable[str]],
) -> None:
    """One step of IncrementalAlterConfigs. `inherited` has the words of a list that is not set yet."""
    if operation == AlterOperation.DELETE:
        configs.pop(name, None)
        return
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation == AlterOperation.SET:
        configs[name] = value
    elif operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        if known_key(table, name) is not ConfigType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Config value append or subtract is not allowed for config key: {name}"
            )
        present = _words(configs[name]) if configs.get(name) else list(inherited(name))
        given = _words(value)
        if operation == AlterOperation.APPEND:
            present += [word for word in given if word not in present]
        else:
            present = [word for word in present if word not in given]
        configs[name] = ",".join(present)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation} for config key {name}")


def defaults_of(table: ConfigTable) -> Callable[[str], Iterable[str]]:
    """The words of a list that is not set for a broker. As in Kafka its file has no say: controllers do not know it."""

    def words(name: str) -> Iterable[str]:
        default = table.key(name).default
        return default if isinstance(default, tuple) else ()

    return words


def known_key(table: ConfigTable, name: str) -> ConfigType:
    """The type of a key. Raises INVALID_CONFIG if there is none of the name."""
    try:
        return table.key(name).type
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


_WITHOUT_SETTINGS: Final[Mapping[int, str]] = {
    ResourceType.GROUP: "Oncelog has no settings of groups: Kafka has them for groups of other protocols than the "
    "classic one",
    ResourceType.CLIENT_METRICS: "Oncelog has no settings of client metrics: it does not collect any from clients",
    ResourceType.BROKER_LOGGER: "Oncelog has no settings of loggers: start it with another --log-level",
}


def without_settings(resource_type: int) -> KafkaError:
    """The refusal of resources that have settings in Kafka, but not here."""
    problem = _WITHOUT_SETTINGS.get(resource_type, f"Unsupported resource type: {resource_type}")
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


class NewConfigs(NamedTuple):
    values: dict[str, str]
    records: list[Message]


def new_topic_configs(view: View, wanted: CreatableTopic) -> NewConfigs:
    """Raises KafkaError."""
    configs = check_configs({config.name: config.value for config in wanted.configs})
    resource = ConfigResource(ResourceType.TOPIC, wanted.name)
    records = [_record(resource, name, value) for name, value in configs.items()]
    return NewConfigs(configs, [*records, *_cleared(view, records)])


def alter_incrementally(view: View, request: IncrementalAlterConfigsRequest, who: Requester) -> Deciding:
    def changed(resource: IncrementalAlterConfigsResource) -> Records:
        target = ConfigResource(resource.resource_type, resource.resource_name)
        names = [config.name for config in resource.configs]
        if len(set(names)) < len(names):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        table = TOPIC_CONFIG if resource.resource_type == ResourceType.TOPIC else view.settings.table
        configs = dict(view.image.settings.get(target, {}))
        for config in resource.configs:
            change_setting(
                table, configs, config.name, config.config_operation, config.value,
                view.settings.topic_settings({}).words if table is TOPIC_CONFIG else defaults_of(table),
            )  # fmt: skip
        return _changes(view, target, configs, names)

    altered = _Altered(view, who, request.resources, changed)
    answers = yield from altered.answers(IncrementalAlterConfigsResourceResponse)
    records = [] if request.validate_only else altered.records
    return Decision(records, IncrementalAlterConfigsResponse(responses=answers))


def replace_all(view: View, request: AlterConfigsRequest, who: Requester) -> Deciding:
    def changed(resource: AlterConfigsResource) -> Records:
        target = ConfigResource(resource.resource_type, resource.resource_name)
        given = {config.name: config.value for config in resource.configs}
        configs = {name: value for name, value in given.items() if value is not None}
        if len(configs) < len(given):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Null value not supported: leave a key out to get its default.")
        names = [*configs, *(name for name in view.image.settings.get(target, {}) if name not in configs)]
        return _changes(view, target, configs, names)

    altered = _Altered(view, who, request.resources, changed)
    answers = yield from altered.answers(AlterConfigsResourceResponse)
    return Decision([] if request.validate_only else altered.records, AlterConfigsResponse(responses=answers))


A = TypeVar("A", AlterConfigsResourceResponse, IncrementalAlterConfigsResourceResponse)


class _Altered:
    """Resources one by one. An error in one does not keep others from being altered."""

    def __init__(
        self,
        view: View,
        who: Requester,
        resources: Sequence[IncrementalAlterConfigsResource] | Sequence[AlterConfigsResource],
        changed: Callable[..., Records],
    ) -> None:
        self._view = view
        self._who = who
        self._changed = changed
        self._resources = {ConfigResource(each.resource_type, each.resource_name): each for each in resources}
        self._counts = Counter(ConfigResource(each.resource_type, each.resource_name) for each in resources)
        self._records: Records = []

    def answers(self, answer: type[A]) -> Generator[None, None, list[A]]:
        answers = []
        for resource, given in self._resources.items():
            answers.append(answer(error_message=None, resource_type=resource.type, resource_name=resource.name))
            try:
                if self._counts[resource] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
                self._check(resource)
                self._records += self._changed(given)
            except KafkaError as error:
                answers[-1].error_code, answers[-1].error_message = error.code, error.message
            yield
        return answers

    @property
    def records(self) -> list[Message]:
        return [*self._records, *_cleared(self._view, self._records)]

    def _check(self, resource: ConfigResource) -> None:
        if resource.type == ResourceType.TOPIC:
            self._who.require(Operation.ALTER_CONFIGS, Resource.TOPIC, resource.name)
            if not resource.name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            check_name(resource.name)
            if resource.name not in self._view.image.topic_ids:
                raise unknown_topic()
        elif resource.type == ResourceType.BROKER:
            self._who.require(Operation.ALTER_CONFIGS, Resource.CLUSTER)
            self._check_broker(resource.name)
        else:
            if resource.type == ResourceType.GROUP:
                self._who.require(Operation.ALTER_CONFIGS, Resource.GROUP, resource.name)
            raise without_settings(resource.type)

    def _check_broker(self, name: str) -> None:
        if not name:
            return
        if not _NUMBER.fullmatch(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
        if self._view.broker(int(name)) is None and int(name) not in self._view.image.controllers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")


def _changes(view: View, resource: ConfigResource, configs: Mapping[str, str], names: Iterable[str]) -> Records:
    """Records of those names that have changed. For brokers of all: a password file may be a new one."""
    if resource.type == ResourceType.TOPIC:
        check_configs(configs)
    present = view.image.settings.get(resource, {})
    is_broker = resource.type == ResourceType.BROKER
    records = [
        _record(resource, name, configs.get(name))
        for name in names
        if is_broker or configs.get(name) != present.get(name)
    ]
    for record in records:
        _check_record(view, record)
    return records


def _check_record(view: View, record: ConfigRecord) -> None:
    if record.value is not None and len(record.value) > _VALUE_CHARS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The configuration value cannot be added because it exceeds the maximum value size of {_VALUE_CHARS_MAX} "
            "bytes.",
        )
    if not view.has_elr or record.name != MIN_ISR or record.resource_type != ResourceType.BROKER:
        return
    if record.resource_name:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
    if record.value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")


def _record(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)


def _cleared(view: View, records: Iterable[ConfigRecord]) -> list[ClearElrRecord]:
    """Records that empty the ELR of topics whose min.insync.replicas changes: nobody knows any more whether its members
    have all that is committed."""
    if not view.has_elr:
        return []
    return [
        ClearElrRecord(topic_name=record.resource_name if record.resource_type == ResourceType.TOPIC else "")
        for record in records
        if record.name == MIN_ISR
    ]
