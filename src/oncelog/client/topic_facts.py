"""What a writer must know of a topic before it sends rows there, looked up for many topics at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from oncelog.client.admin_base import AdminBase
from oncelog.client.cluster import Cluster, TopicInfo
from oncelog.client.errors import KafkaError, error_of
from oncelog.core.config_resources import ResourceType
from oncelog.core.dataclass import dataclass
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

logger = logging.getLogger(__name__)

SETTINGS_AGE_S = 60.0
"""How long the settings of a topic may be taken for granted: they hardly ever change."""
TOPIC_NAME_LENGTH_MAX = 249
"""No topic has a longer name. A broker would not answer if it were asked for one of a row that holds a whole text."""
_KEYS = ["cleanup.policy", "max.message.bytes"]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a writer must know of a topic."""

    partitions: int
    is_internal: bool = False
    """One of the cluster's own, which only its brokers write to."""
    is_compacted: bool = False
    message_bytes_max: int | None = None
    """The largest batch of records it takes; None when the broker does not say."""

    def record_bytes_max(self, otherwise: int) -> int:
        """The largest batch it takes, `otherwise` at most."""
        return otherwise if self.message_bytes_max is None else min(otherwise, self.message_bytes_max)


class TopicLookup(AdminBase):
    """Two requests however many topics are asked for: their partitions, and their settings if those are old."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._settings: dict[str, tuple[Mapping[str, str | None], float]] = {}

    async def facts(self, names: Collection[str]) -> dict[str, TopicFacts]:
        """The facts of topics that exist now; others are left out."""
        names = [name for name in names if len(name) <= TOPIC_NAME_LENGTH_MAX]
        await self.cluster.refresh(names, self._deadline())
        found = {name: self.cluster.topics[name] for name in names if name in self.cluster.topics}
        await self._renew_settings(found)
        return {name: _facts(info, self._settings[name][0]) for name, info in found.items()}

    async def _renew_settings(self, names: Collection[str]) -> None:
        now_s = time.monotonic()
        old = [name for name in names if now_s - self._settings.get(name, ({}, -SETTINGS_AGE_S))[1] >= SETTINGS_AGE_S]
        if old:
            for name, settings in (await self._describe(old)).items():
                self._settings[name] = (settings, now_s)

    async def _describe(self, names: Collection[str]) -> dict[str, Mapping[str, str | None]]:
        """One may be allowed to write to a topic and not to see its settings: then the broker judges the rows."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=_KEYS)
                for name in names
            ]
        )

        described: dict[str, Mapping[str, str | None]] = {name: {} for name in names}
        try:
            response = await self._ask_any(request, DescribeConfigsResponse)
        except KafkaError as error:
            logger.warning("the settings of topics cannot be seen: %s", error)
            return described
        for result in response.results:
            if result.error_code:
                refused = error_of(result.error_code, f"topic {result.resource_name}")
                logger.warning("the settings of a topic cannot be seen: %s", refused)
            described[result.resource_name] = {entry.name: entry.value for entry in result.configs}
        return described


def _facts(info: TopicInfo, settings: Mapping[str, str | None]) -> TopicFacts:
    size = settings.get("max.message.bytes")
    return TopicFacts(
        partitions=len(info.partitions),
        is_internal=info.is_internal,
        is_compacted="compact" in (settings.get("cleanup.policy") or ""),
        message_bytes_max=None if size is None else int(size),
    )
