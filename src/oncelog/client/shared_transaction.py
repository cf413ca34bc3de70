"""What a driver hands to workers in other processes, so that they write in its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from oncelog.client.config import CLIENT_TABLE
from oncelog.client.topic_facts import TopicFacts
from oncelog.core.config import setting
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NO_IDENTITY, ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class SharedTransaction:
    """A driver's transaction, for workers in other processes: small and picklable, without connections.

    `TransactionClient.share` gives one. It is good for one transaction: when that has ended, brokers refuse batches
    of its epoch. Without a transactional id batches are idempotent only, and without an identity they are plain.
    """

    transactional_id: str | None = None
    identity: ProducerIdAndEpoch = NO_IDENTITY
    transaction_version: int = setting(CLIENT_TABLE["oncelog.transaction.version.max"])
    """All requests of one transaction must speak the same protocol: the one that its driver has found."""
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    """Those that the driver has looked up, so that workers need not."""
