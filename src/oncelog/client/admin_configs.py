"""Settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.arguments import list_of, setting_text
from oncelog.client.attempts import Attempts
from oncelog.client.connection import Connection
from oncelog.client.errors import ConfigurationError
from oncelog.core.config_resources import AlterOperation, ConfigSource, ResourceType
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: int
    """A `ConfigSource`, or a number that is newer than this client."""
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class ConfigAdmin(AdminBase):
    async def describe_configs(
        self, resource: ConfigResource, names: Iterable[str] | None = None, *, documentation: bool = False
    ) -> dict[str, ConfigEntry]:
        """The settings of one topic, broker or group, by name."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list_of("names", names),
                )
            ],
            include_documentation=documentation,
        )

        async def attempt() -> DescribeConfigsResponse:
            return await self._ask(await self._owner(resource), request, DescribeConfigsResponse)

        response = await self.cluster.retrying("DescribeConfigs", attempt, self._deadline())
        raise_first(
            (r.error_code, f"settings of {resource.type.name.lower()} {r.resource_name}", r.error_message)
            for r in response.results
        )
        return {entry.name: _entry(entry) for result in response.results for entry in result.configs}

    async def alter_configs(
        self,
        resource: ConfigResource,
        set: Mapping[str, str | float] | None = None,  # noqa: A002  # the word people know from Kafka's tools
        delete: Iterable[str] = (),
        *,
        append: Mapping[str, str | float] | None = None,
        subtract: Mapping[str, str | float] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change single settings and leave the others. `append` and `subtract` are for settings that are lists."""
        changes = [
            *(_change(name, AlterOperation.SET, value) for name, value in (set or {}).items()),
            *(_change(name, AlterOperation.DELETE, None) for name in list_of("names", delete)),
            *(_change(name, AlterOperation.APPEND, value) for name, value in (append or {}).items()),
            *(_change(name, AlterOperation.SUBTRACT, value) for name, value in (subtract or {}).items()),
        ]
        if not changes:
            raise ConfigurationError("alter_configs: nothing to change was given")
        request = IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=changes)],
            validate_only=validate_only,
        )

        attempts = Attempts()

        async def attempt() -> IncrementalAlterConfigsResponse:
            return await self._ask(await self._owner(resource), request, IncrementalAlterConfigsResponse, attempts)

        response = await self.cluster.retrying("IncrementalAlterConfigs", attempt, self._deadline(), attempts)
        raise_first(
            (
                (r.error_code, f"settings of {resource.type.name.lower()} {r.resource_name}", r.error_message)
                for r in response.responses
            ),
            attempts,
        )

    async def _owner(self, resource: ConfigResource) -> Connection:
        """Only a broker itself knows its settings; everything else anyone can answer."""
        if resource.type == ResourceType.BROKER and resource.name:
            return await self.cluster.broker(int(resource.name))
        return await self.cluster.any_broker()


def _change(name: str, operation: AlterOperation, value: str | float | None) -> AlterableConfig:
    text = None if value is None else setting_text(name, value)
    return AlterableConfig(name=name, config_operation=operation, value=text)


def _entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive, entry.documentation
    )
