"""Names of the features whose levels a cluster finalises."""

from __future__ import annotations

from typing import Final

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"
