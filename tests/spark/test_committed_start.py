"""`startingOffsets=committed` of a group that stands nowhere is allowed, but not passed over in silence."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.spark import source
from oncelog.spark.source_options import parse_source_options

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Plan:
    def starting_offsets(self) -> dict[TopicPartition, int]:
        return {P0: 0, P1: 0}


@pytest.mark.parametrize(
    ("starting", "known", "warns"),
    [
        ("committed", (), True),
        ("committed", (TopicPartition("others", 0),), True),
        # A partition that appeared since the last commit.
        ("committed", (P0,), False),
        ("earliest", (), False),
    ],
)
def test_a_group_that_has_committed_nothing_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    starting: str,
    known: tuple[TopicPartition, ...],
    warns: bool,
) -> None:
    class Client:
        def group_offsets(self, group: str, *, require_stable: bool) -> dict[TopicPartition, OffsetAndMetadata]:
            return {partition: OffsetAndMetadata(5, "") for partition in known}

    monkeypatch.setattr(source, "worker_client", lambda _: Client())
    options = parse_source_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "orders",
            "startingOffsets": starting,
            "kafka.group.id": "nobody",
        },
        streaming=True,
    )
    plan: Any = Plan()
    with caplog.at_level(logging.WARNING):
        assert source.starting_offsets(plan, options) == {P0: 0, P1: 0}
    assert ("group nobody has committed nothing for orders" in caplog.text) is warns
