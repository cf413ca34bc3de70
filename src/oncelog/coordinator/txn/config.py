"""The settings the transaction coordinator decides by."""

from __future__ import annotations

from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import setting
from oncelog.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TxnConfig:
    transaction_version: TransactionVersion = setting(BROKER_CONFIG["transaction.version"], TransactionVersion)
    """In a cluster, the level that its controllers have finalised."""
    max_timeout_ms: int = setting(BROKER_CONFIG["transaction.max.timeout.ms"])
    transactional_id_expiration_ms: int = setting(BROKER_CONFIG["transactional.id.expiration.ms"])
    two_phase_commit_enable: bool = setting(BROKER_CONFIG["transaction.two.phase.commit.enable"])
    expired_ids_per_scan_max: int = 1_000
    """How many tombstones one scan hands out; the rest waits for the next scan."""
