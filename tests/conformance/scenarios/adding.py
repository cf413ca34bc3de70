"""AddPartitionsToTxn (clients v0-3, brokers v4-5) and AddOffsetsToTxn."""

from __future__ import annotations

from typing import Any, Final

from tests.conformance.scenario import NEW_PROTOCOL, Ref, Scenario, Step
from tests.conformance.steps import add_offsets, add_partitions, add_partitions_batched, describe, end, init

CLIENT_VERSIONS: Final = range(4)
BROKER_VERSIONS: Final = (4, 5)
OFFSET_VERSIONS: Final = range(5)


def partitions(version: int) -> Scenario:
    steps = [
        init("P", "x"),
        add_partitions("P", "x", {"t": [0]}, version),
        describe("x"),
        add_partitions("P", "x", {"t": [0]}, version, note="again"),
        add_partitions("P", "x", {"t": [0, 1], "u": [0]}, version, note="more"),
        describe("x"),
        add_partitions("P", "x", {}, version, note="none"),
        end("P", "x"),
        add_partitions("P", "x", {"t": [1]}, version, note="the next transaction"),
        describe("x"),
        end("P", "x", commit=False),
        describe("x"),
    ]
    return Scenario(f"partitions-v{version}", steps, topics={"t": 2, "u": 1})


def partitions_refused(version: int) -> Scenario:
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_partitions("P", "unknown", {"t": [0]}, version, note="unknown id"),
        add_partitions("P", "", {"t": [0]}, version, note="empty id"),
        add_partitions("P", "x", {"t": [0]}, version, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        add_partitions("P", "x", {"t": [0]}, version, epoch=-1, note="stale epoch"),
        add_partitions("P", "x", {"t": [0]}, version, epoch=1, note="future epoch"),
        add_partitions("P", "x", {"t": [0, 7], "missing": [0]}, version, note="unknown partition and topic"),
        describe("x", note="nothing was added"),
        add_partitions("P", "x", {"t": [0]}, version),
        add_partitions("P", "x", {"t": [0]}, version, epoch=-1, note="stale epoch, open"),
        add_partitions("P", "x", {"t": [1], "missing": [0]}, version, note="unknown topic, open"),
        describe("x"),
    ]
    return Scenario(f"partitions-refused-v{version}", steps)


def batched(version: int, verify_only: bool) -> Scenario:
    """Between brokers: adding for a TV2 client, or verifying for an older one."""

    def ask(partitions: dict[str, list[int]], transactional_id: str = "x", **more: Any) -> Step:
        return add_partitions_batched("P", transactional_id, partitions, version, verify_only=verify_only, **more)

    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        ask({"t": [0]}, note="nothing open"),
        add_partitions("P", "x", {"t": [0]}),
        ask({"t": [0]}, note="in the transaction"),
        ask({"t": [0, 1]}, note="one of them is not"),
        ask({"t": [0]}, epoch=-1, note="stale epoch"),
        ask({"t": [0]}, epoch=1, note="future epoch"),
        ask({"t": [0]}, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        ask({"t": [0]}, "unknown", note="unknown id"),
        ask({"t": [0]}, "", note="empty id"),
        ask({"missing": [0]}, note="unknown topic"),
        describe("x"),
        end("P", "x"),
        ask({"t": [0]}, note="after the end"),
        describe("x"),
    ]
    name = f"{'verifying' if verify_only else 'batched'}-v{version}"
    return Scenario(name, steps, transaction_versions=(0, 1, 2) if verify_only else NEW_PROTOCOL)


def offsets(version: int) -> Scenario:
    steps = [
        init("P", "x"),
        add_offsets("P", "x", "g", version),
        add_offsets("P", "x", "g", version, note="again"),
        describe("x"),
        add_offsets("P", "x", "", version, note="empty group"),
        end("P", "x"),
        describe("x"),
        init("P", "x", note="epoch 1"),
        add_offsets("P", "unknown", "g", version, note="unknown id"),
        add_offsets("P", "", "g", version, note="empty id"),
        add_offsets("P", "x", "g", version, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        add_offsets("P", "x", "g", version, epoch=-1, note="stale epoch"),
        add_offsets("P", "x", "g", version, epoch=1, note="future epoch"),
        describe("x", note="nothing was added"),
    ]
    return Scenario(f"offsets-v{version}", steps)


SCENARIOS: Final = (
    *(partitions(version) for version in CLIENT_VERSIONS),
    *(partitions_refused(version) for version in CLIENT_VERSIONS),
    *(batched(version, verify_only) for version in BROKER_VERSIONS for verify_only in (False, True)),
    *(offsets(version) for version in OFFSET_VERSIONS),
)
