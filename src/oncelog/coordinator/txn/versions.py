"""`transaction.version`: what the cluster runs, and which protocol a request's version says its client speaks."""

from __future__ import annotations

from enum import IntEnum


class TransactionVersion(IntEnum):
    TV0 = 0
    """The original protocol; records with schema v0."""
    TV1 = 1
    """Records with schema v1, whose tagged fields leave room for more."""
    TV2 = 2
    """Every EndTxn bumps the epoch, partitions are added implicitly, marker epochs are strict."""

    @property
    def bumps_epochs(self) -> bool:
        return self >= TransactionVersion.TV2

    @property
    def record_version(self) -> int:
        return 0 if self is TransactionVersion.TV0 else 1


def version_of_end_txn(request_version: int) -> TransactionVersion:
    return TransactionVersion.TV2 if request_version >= 5 else TransactionVersion.TV0


def version_of_add_partitions(request_version: int) -> TransactionVersion:
    """Versions from 4 on come from brokers that add on behalf of a TV2 client. AddOffsetsToTxn is always TV0."""
    return TransactionVersion.TV2 if request_version >= 4 else TransactionVersion.TV0
