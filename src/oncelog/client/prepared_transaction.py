"""What the other side of a two-phase commit has to remember of a prepared transaction."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.client.errors import ConfigurationError
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch


class PreparedTransaction(NamedTuple):
    """Written as `str`, read back with `parse`. It names one transaction: a later one of the same id is not meant."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}:{self.transaction_version}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """From what `str` gave. Raises ConfigurationError for anything else."""
        parts = text.split(":", 3)
        if len(parts) != 4 or not all(part.lstrip("-").isdigit() for part in parts[:3]):
            raise ConfigurationError(f"{text!r} is not a prepared transaction")
        return cls(parts[3], int(parts[0]), int(parts[1]), int(parts[2]))
