"""The settings the transaction coordinator decides by, under their Kafka names in the broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.coordinator.txn.versions import TransactionVersion


@dataclass(frozen=True, slots=True)
class TxnConfig:
    transaction_version: TransactionVersion = TransactionVersion.TV2
    """`transaction.version`, finalised."""
    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`"""
    transactional_id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`"""
    two_phase_commit_enable: bool = False
    """`transaction.two.phase.commit.enable`"""
    expired_ids_per_scan_max: int = 1_000
    """How many tombstones one scan hands out; the rest waits for the next scan."""
