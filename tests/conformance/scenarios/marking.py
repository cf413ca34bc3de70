"""WriteTxnMarkers as coordinators and administrators send it, and what the partition leader makes of it."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenario import NEW_PROTOCOL, Ref, Scenario, Step
from tests.conformance.steps import (
    add_partitions,
    describe,
    end,
    fetch,
    init,
    list_offsets,
    markers,
    produce,
    producers,
)

VERSIONS: Final = (1, 2)


def hanging(version: int, commit: bool) -> Scenario:
    """An open transaction of the partition is ended behind the coordinator's back, as kafka-transactions abort does."""
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", count=2),
        list_offsets(committed=True),
        markers("P", version=version, commit=commit),
        producers(),
        list_offsets(committed=True),
        fetch(),
        fetch(committed=False),
        markers("P", version=version, commit=commit, note="again"),
        produce("P", "x", sequence=2, note="its producer writes on"),
        describe("x"),
        end("P", "x"),
        producers(),
        fetch(committed=False),
    ]
    return Scenario(f"hanging-{'commit' if commit else 'abort'}-v{version}", steps)


def epochs(version: int) -> Scenario:
    """Older producer epochs and older coordinator epochs are refused."""
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x"),
        markers("P", version=version, epoch=-1, note="older epoch"),
        markers("P", version=version, coordinator_epoch=5),
        producers(),
        markers("P", version=version, coordinator_epoch=4, note="older coordinator"),
        markers("P", version=version, coordinator_epoch=5, epoch=1, note="next epoch"),
        producers(),
        markers("P", version=version, coordinator_epoch=5, note="the epoch before"),
        markers("P", version=version, coordinator_epoch=6, epoch=5, note="far epoch"),
        producers(),
        fetch(committed=False),
    ]
    return Scenario(f"epochs-v{version}", steps)


def strict() -> Scenario:
    """KIP-1228: a marker of TV2 must have a higher epoch than the data, or repeat one that ended the transaction."""
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x"),
        markers("P", version=2, transaction_version=2, note="epoch of the open transaction"),
        markers("P", version=2, transaction_version=2, epoch=-1, note="older epoch"),
        list_offsets(committed=True),
        markers("P", version=2, transaction_version=2, epoch=1, note="next epoch"),
        list_offsets(committed=True),
        producers(),
        markers("P", version=2, transaction_version=2, epoch=1, note="repeated"),
        markers("P", version=2, transaction_version=2, note="epoch of the data, after the end"),
        markers("P", version=2, transaction_version=0, note="epoch of the data, lenient"),
        fetch(committed=False),
    ]
    return Scenario("strict", steps)


def unknown(version: int) -> Scenario:
    """Producers and partitions that the leader has not seen."""
    steps = [
        init("P", "x"),
        markers("P", version=version, note="nothing written"),
        producers(),
        markers("P", version=version, commit=True, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        markers("P", version=version, topic="missing", note="unknown topic"),
        markers("P", version=version, partitions=[0, 9], note="unknown partition"),
        list_offsets(committed=True),
        fetch(committed=False),
        Step("write_txn_markers", version, {"markers": []}, note="none"),
    ]
    return Scenario(f"unknown-v{version}", steps)


def new_protocol() -> Scenario:
    """What TV2's own markers leave behind in the partition."""
    steps = [init("P", "x", 5)]
    for commit in (True, False):
        steps += [produce("P", "x", version=12, count=2), producers()]
        steps += [end("P", "x", 5, commit=commit, keep=True), producers()]
    return Scenario("new-protocol", [*steps, fetch(), fetch(committed=False)], transaction_versions=NEW_PROTOCOL)


SCENARIOS: Final = (
    *(hanging(version, commit) for version in VERSIONS for commit in (False, True)),
    *(epochs(version) for version in VERSIONS),
    strict(),
    *(unknown(version) for version in VERSIONS),
    new_protocol(),
)
