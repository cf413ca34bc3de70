"""InitProducerId: first, repeated, expected, stale and unacceptable producers, and over an open transaction."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenario import Ref, Scenario, Step
from tests.conformance.steps import add_partitions, describe, end, fetch, init, list_offsets, produce, producers, same

VERSIONS: Final = range(6)
WITH_EXPECTED: Final = (3, 4, 5)


def without_an_id() -> list[Scenario]:
    """Only idempotent: every call gives a new producer id, and what the client expects is ignored."""
    found = [Scenario(f"idempotent-v{v}", [init("A", None, v), init("B", None, v)], topics={}) for v in VERSIONS]
    expected = [init("A", None, v, expected=(5, 1), note="expecting a producer of its own") for v in WITH_EXPECTED]
    half = [
        Step(
            "init_producer_id", v, {"transactional_id": None, "producer_id": p, "producer_epoch": e}, note="half a pair"
        )
        for v in WITH_EXPECTED
        for p, e in ((7, -1), (-1, 3))
    ]
    return [*found, Scenario("idempotent-expecting", expected, topics={}), Scenario("idempotent-half", half, topics={})]


def refused() -> list[Scenario]:
    steps = []
    for version in VERSIONS:
        steps.append(init("P", "", version, keep=False, note="empty id"))
        for timeout_ms in (0, -1, 900_001, 2**31 - 1):
            steps.append(init("P", "x", version, timeout_ms=timeout_ms, keep=False, note=f"timeout {timeout_ms}"))
    steps.append(describe("x", note="nothing was made"))
    half = [init("P", "x", v, expected=pair, keep=False) for v in WITH_EXPECTED for pair in ((7, -1), (-1, 3))]
    return [Scenario("refused", steps, topics={}), Scenario("refused-half-expected", half, topics={})]


def repeated(version: int) -> Scenario:
    """A new instance moves the epoch by one and keeps the id; its timeout is the one that counts."""
    steps = [init("P", "x", version), describe("x"), init("P", "x", version, timeout_ms=30_000), describe("x")]
    return Scenario(f"repeated-v{version}", [*steps, init("P", "x", version), init("P", "x", version)], topics={})


def expected(version: int) -> Scenario:
    """KIP-360: the current epoch moves on, the one before is a repeated request, everything else is fenced."""
    steps = [
        init("P", "x", version),
        init("Q", "x", version, expected=same("P"), note="current"),
        init("Q", "x", version, expected=same("P"), note="repeated after a lost answer"),
        init("Q", "x", version, expected=same("Q"), note="current again"),
        init("R", "x", version, expected=same("P"), keep=False, note="older than the one before"),
        init("R", "x", version, expected=same("Q", 1), keep=False, note="not given out yet"),
        init("R", "x", version, expected=(Ref("P.id", 1_000_000), Ref("P.epoch")), keep=False, note="another id"),
        describe("x"),
        init("S", "x", version, note="a new instance"),
        init("R", "x", version, expected=same("Q"), keep=False, note="the one before a new instance"),
        init("S", "x", version, expected=same("S")),
    ]
    return Scenario(f"expected-v{version}", steps, topics={})


def expected_of_unknown(version: int) -> Scenario:
    """An id that expired is made again for whoever still has its old producer id."""
    return Scenario(f"expected-of-unknown-id-v{version}", [init("P", "x", version, expected=(12345, 7))], topics={})


def expected_after_end(version: int) -> Scenario:
    """Epoch bump after a committed and after an aborted transaction of the old protocol."""
    steps = [init("P", "x", version)]
    for commit in (True, False):
        steps += [add_partitions("P", "x", {"t": [0]}), produce("P", "x"), end("P", "x", commit=commit)]
        steps += [init("P", "x", version, expected=same("P")), describe("x")]
    return Scenario(f"expected-after-end-v{version}", steps)


def over_open(version: int) -> Scenario:
    """A second instance over an open transaction: it is aborted, and the first instance is fenced everywhere."""
    steps = [
        init("P", "x", version),
        add_partitions("P", "x", {"t": [0, 1]}),
        produce("P", "x"),
        produce("P", "x", partition=1),
        list_offsets(committed=True, note="held back"),
        init("Q", "x", version, note="the second instance"),
        describe("x"),
        produce("P", "x", sequence=1, note="the first instance writes on"),
        add_partitions("P", "x", {"t": [1]}, note="the first instance adds"),
        end("P", "x", note="the first instance commits"),
        init("P", "x", max(version, 3), expected=same("P"), keep=False, note="the first instance wants to go on"),
        list_offsets(committed=True, note="released"),
        fetch(),
        fetch(partition=1),
        producers(),
        add_partitions("Q", "x", {"t": [0]}),
        produce("Q", "x"),
        end("Q", "x"),
        fetch(),
    ]
    return Scenario(f"over-open-v{version}", steps)


def over_open_expecting(version: int) -> Scenario:
    """The same producer bumps its own epoch while its transaction is open, as Java does after an abortable error."""
    steps = [
        init("P", "x", version),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x"),
        init("Q", "x", version, expected=same("P"), keep=False),
        describe("x"),
        fetch(),
    ]
    return Scenario(f"over-open-expecting-v{version}", steps)


SCENARIOS: Final = (
    *without_an_id(),
    *refused(),
    *(repeated(version) for version in VERSIONS),
    *(expected(version) for version in WITH_EXPECTED),
    *(expected_of_unknown(version) for version in WITH_EXPECTED),
    *(expected_after_end(version) for version in WITH_EXPECTED),
    *(over_open(version) for version in VERSIONS),
    *(over_open_expecting(version) for version in WITH_EXPECTED),
)
