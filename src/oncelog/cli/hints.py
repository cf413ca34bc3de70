"""What commands say on the standard error: who is held back and by whom, and what was not done as it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.cli.connection import Connection
from oncelog.cli.output import count_of
from oncelog.core.ids import TopicPartition

if TYPE_CHECKING:
    from oncelog.monitoring.offsets import PartitionOffsets


def held_back_hint(connection: Connection, partition: TopicPartition, offsets: PartitionOffsets) -> str:
    blocking = connection.command("txn", "blocking", f"{partition.topic}:{partition.partition}")
    return (
        f"{partition}: an open transaction holds back {count_of(offsets.held_back, 'offset')} from "
        f"{offsets.last_stable} on; '{blocking}' says whose it is"
    )


def outside_hint(partition: TopicPartition, offsets: PartitionOffsets, wanted: int, used: int) -> str:
    return f"{partition} has offsets {offsets.start} to {offsets.end}: {used} instead of {wanted}"
