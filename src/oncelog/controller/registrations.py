"""Who takes part in a cluster: brokers with the state that heartbeats gave them, and controllers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self
from uuid import UUID

from oncelog.controller.errors import InvalidMetadata
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.broker_registration import Feature, Listener
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)

_FENCING: Final = {-1: False, 0: None, 1: True}
_SHUTTING_DOWN: Final = {0: None, 1: True}


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    broker_id: NodeId
    epoch: int
    """Given at registration: what an earlier start of the broker says under its own epoch is refused."""
    incarnation_id: UUID
    """The process that registered."""
    listeners: Mapping[str, Listener]
    features: Mapping[str, Feature]
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    is_migrating_zk_broker: bool
    directories: tuple[UUID, ...]
    cordoned_directories: tuple[UUID, ...] | None
    """Directories that take no new replicas; None before the broker has reported them."""

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> Self:
        return cls(
            broker_id=NodeId(record.broker_id),
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners={endpoint.name: endpoint for endpoint in record.end_points},
            features={feature.name: feature for feature in record.features},
            rack=record.rack,
            is_fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            directories=tuple(record.log_dirs),
            cordoned_directories=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
        )

    def merged(self, change: BrokerRegistrationChangeRecord) -> Self:
        if change.fenced not in _FENCING or change.in_controlled_shutdown not in _SHUTTING_DOWN:
            raise InvalidMetadata(f"broker {self.broker_id} cannot be changed by {change}: a value is unknown")
        fenced, shutting_down = _FENCING[change.fenced], _SHUTTING_DOWN[change.in_controlled_shutdown]
        cordoned = change.cordoned_log_dirs
        return replace(
            self,
            is_fenced=self.is_fenced if fenced is None else fenced,
            in_controlled_shutdown=shutting_down or self.in_controlled_shutdown,
            directories=tuple(change.log_dirs) or self.directories,
            cordoned_directories=self.cordoned_directories if cordoned is None else tuple(cordoned),
        )

    def to_record(self) -> RegisterBrokerRecord:
        cordoned = self.cordoned_directories
        return RegisterBrokerRecord(
            broker_id=self.broker_id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=list(self.listeners.values()),
            features=list(self.features.values()),
            rack=self.rack,
            fenced=self.is_fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.directories),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )
