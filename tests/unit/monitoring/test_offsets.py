"""How far readers are behind, and how much of that an open transaction holds back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from oncelog.client.admin import OffsetSpec
from oncelog.client.admin_topics import OffsetResult
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, lag_of, partition_offsets

PLACE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("position", "total", "held_back", "visible"),
    [
        (2, 8, 4, 4),
        (6, 4, 4, 0),
        (8, 2, 2, 0),
        (10, 0, 0, 0),
        (12, -2, 0, -2),
    ],
    ids=["before", "at the last stable offset", "behind it", "at the end", "beyond a log that was made anew"],
)
def test_a_lag_has_a_part_that_is_held_back(position: int, total: int, held_back: int, visible: int) -> None:
    lag = lag_of(position, PartitionOffsets(0, 6, 10))
    assert (lag.total, lag.held_back, lag.visible) == (total, held_back, visible)


class GrowingLog:
    """An admin of a partition that grows by a committed record with every question."""

    def __init__(self) -> None:
        self.end = 10

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, Any]:
        self.end += 1
        return {
            place: OffsetResult(0 if spec == OffsetSpec.EARLIEST else self.end, -1, -1) for place, spec in specs.items()
        }


def test_records_written_between_two_questions_are_not_taken_for_an_open_transaction() -> None:
    found = partition_offsets(GrowingLog(), [PLACE])[PLACE]  # type: ignore[arg-type]
    assert found.held_back == 0
    assert found.end == found.last_stable
