"""Executor memory does not grow with the batch: many times the rows, the same Python workers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from peers.spark.memory import forget_peaks, peak_bytes
from peers.spark.topics import Topics
from tests.spark.pipeline import Pipeline

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="peaks of other processes are read from /proc"),
]

SMALL, LARGE = 100_000, 1_000_000
MIB = 1 << 20


def test_a_large_batch_needs_no_more_memory_than_a_small_one(pipeline: Pipeline, name: Callable[[str], str]) -> None:
    """One task reads the large batch and one writes it: keeping it would take more than 100 MiB of either."""
    pipeline.source, pipeline.target = pipeline.kafka.create(name("rows")), pipeline.kafka.create(name("copy"))
    Topics(pipeline.kafka.servers).fill(pipeline.source, LARGE)
    peaks = []
    for per_batch in (SMALL, LARGE):
        pipeline.options["maxOffsetsPerTrigger"] = str(per_batch)
        pipeline.checkpoint += f"-{per_batch}"
        pipeline.id += f"-{per_batch}"
        forget_peaks()
        pipeline.run()
        peaks.append(peak_bytes())
    small, large = peaks
    assert small > 20 * MIB
    assert large < small + 60 * MIB, f"{small / MIB:.0f} MiB, then {large / MIB:.0f} MiB"
