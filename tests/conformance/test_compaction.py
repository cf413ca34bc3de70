"""Oncelog's cleaner comes to the same segments, batches, records, markers and index entries as Apache Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.kafka.dump import check_data_dir
from tests.conformance import compaction
from tests.conformance.compaction import Round
from tests.conformance.conftest import require


def compare(made: Round, target: Path) -> None:
    compaction.clean_all(made.before, target, made.cleaned_at_ms)
    assert compaction.describe_all(target, made.cleaned_at_ms) == compaction.describe_all(
        made.after, made.cleaned_at_ms
    )


def test_recorded_rounds_of_kafka_are_reproduced(tmp_path: Path) -> None:
    """Four cleanings in a row, recorded: see tests/data/compaction."""
    rounds = compaction.recorded_rounds(tmp_path)
    assert len(rounds) == 4
    for number, made in enumerate(rounds):
        compare(made, tmp_path / f"{number}-cleaned")


@pytest.mark.timeout(600)
def test_kafka_and_oncelog_clean_the_same_logs_alike(tmp_path: Path) -> None:
    """The same, with what this Kafka writes and cleans now."""
    require("kafka")
    for number, made in enumerate(compaction.make_rounds(tmp_path, count=3)):
        compare(made, tmp_path / f"{number}-cleaned")
        # Kafka's tool finds fault with some of Kafka's own: an entry of a time index whose batch was emptied since.
        assert complaints_about(tmp_path / f"{number}-cleaned") == complaints_about(made.after)


def complaints_about(folder: Path) -> list[str]:
    found = check_data_dir(folder, compacted_topics=list(compaction.DELETE_RETENTION_MS))
    return [text.replace(str(folder), "") for text in found]


def test_the_recorded_rounds_show_every_rule(tmp_path: Path) -> None:
    """Emptied batches, emptied markers, horizons, dropped markers, all codecs: what is not there is not tested."""
    rounds = compaction.recorded_rounds(tmp_path)
    batches = [
        batch
        for made in rounds
        for topic in compaction.describe_all(made.after, made.cleaned_at_ms).values()
        for segment in topic["segments"].values()
        for batch in segment
    ]
    assert {batch["attributes"] & 7 for batch in batches} == {0, 1, 2, 3, 4}
    assert any(not batch["records_count"] and not batch["attributes"] & 0x20 for batch in batches)
    assert any("marker" in batch and batch["attributes"] & 0x40 for batch in batches)
    assert any("marker" in batch and not batch["attributes"] & 0x40 for batch in batches)
    assert any(record[3] is None for batch in batches for record in batch["records"])
    markers = [
        {
            batch["base_offset"]
            for topic in compaction.describe_all(root, made.cleaned_at_ms).values()
            for segment in topic["segments"].values()
            for batch in segment
            if batch["attributes"] & 0x20
        }
        for made in rounds
        for root in (made.before, made.after)
    ]
    assert any(before - after for before, after in zip(markers[::2], markers[1::2], strict=True))
