"""EndTxn: every state of the transaction, both results, current, stale and future epochs, at every version."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenario import NEW_PROTOCOL, Ref, Scenario, Step
from tests.conformance.steps import (
    add_partitions,
    describe,
    end,
    fetch,
    init,
    produce,
    producers,
    same,
)

VERSIONS: Final = range(6)
STATES: Final = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
RESULTS: Final = {True: "commit", False: "abort"}


def served(version: int) -> tuple[int, ...]:
    return NEW_PROTOCOL if version >= 5 else (0, 1, 2)


def reach(state: str, transactional_id: str) -> list[Step]:
    """Bring a transactional id to a state over the old protocol; its epoch is 1, so that there is a stale one."""
    steps = [init("P", transactional_id), init("P", transactional_id)]
    if state != "Empty":
        steps += [add_partitions("P", transactional_id, {"t": [0]}), produce("P", transactional_id)]
    if state.startswith("Complete"):
        steps.append(end("P", transactional_id, commit=state == "CompleteCommit"))
    return steps


def matrix(version: int, state: str, commit: bool, epoch: int) -> Scenario:
    relation = {-1: "stale", 0: "current", 1: "future"}[epoch]
    steps = [*reach(state, "x"), end("P", "x", version, commit=commit, epoch=epoch), describe("x")]
    # What a client's repetition of the very same request is answered.
    steps += [end("P", "x", version, commit=commit, epoch=epoch, note="repeated"), describe("x"), fetch()]
    name = f"{state}-{RESULTS[commit]}-{relation}-v{version}"
    return Scenario(name, steps, topics={"t": 1}, transaction_versions=served(version))


def strangers(version: int) -> Scenario:
    """Producers that the coordinator does not know."""
    steps = [init("P", "x"), add_partitions("P", "x", {"t": [0]})]
    for commit in (True, False):
        steps += [
            end("P", "unknown", version, commit=commit, settle=False, note="unknown id"),
            end("P", "", version, commit=commit, settle=False, note="empty id"),
            end("P", "x", version, commit=commit, producer_id=Ref("P.id", 1_000_000), note="another producer id"),
        ]
    return Scenario(f"strangers-v{version}", [*steps, describe("x")], transaction_versions=served(version))


def opposite(version: int, first: bool) -> Scenario:
    """The other result asked for after the first one was taken."""
    steps = [
        *reach("Ongoing", "x"),
        end("P", "x", version, commit=first),
        end("P", "x", version, commit=not first, note="the opposite, same epoch"),
        describe("x"),
        end("P", "x", version, commit=not first, epoch=1, note="the opposite, next epoch"),
        describe("x"),
    ]
    return Scenario(f"opposite-of-{RESULTS[first]}-v{version}", steps, transaction_versions=served(version))


def chain(first: int, second: int) -> Scenario:
    """Two transactions in a row of one producer; with v5 it goes on with the epoch that it was given."""
    steps = [init("P", "x")]
    for turn, (version, commit) in enumerate(((first, True), (second, False), (second, True))):
        keep = version >= 5
        sequence = 0 if first >= 5 and second >= 5 else turn
        steps += [add_partitions("P", "x", {"t": [0]}), produce("P", "x", sequence=sequence, version=10)]
        steps += [end("P", "x", version, commit=commit, keep=keep), describe("x"), producers()]
    steps += [fetch(), fetch(committed=False)]
    return Scenario(f"chain-v{first}-v{second}", steps, transaction_versions=served(max(first, second)))


def implicit(produce_version: int) -> Scenario:
    """TV2: the partition is added by Produce itself, the epoch moves with every end."""
    steps = [init("P", "x", 5)]
    for commit in (True, False, True):
        steps += [
            produce("P", "x", version=produce_version),
            describe("x"),
            end("P", "x", 5, commit=commit, keep=True),
            describe("x"),
        ]
    steps += [
        end("P", "x", 5, commit=False, keep=True, note="nothing was written: abort"),
        describe("x"),
        end("P", "x", 5, commit=True, note="nothing was written: commit"),
        producers(),
        fetch(),
        fetch(committed=False),
        init("P", "x", 5, expected=same("P")),
    ]
    return Scenario(f"implicit-v{produce_version}", steps, transaction_versions=NEW_PROTOCOL)


def previous_epoch_after_empty_abort() -> Scenario:
    """TV2: an empty abort repeated, then overtaken."""
    steps = [
        init("P", "x", 5),
        end("P", "x", 5, commit=False),
        end("P", "x", 5, commit=False, note="repeated"),
        end("P", "x", 5, commit=True, note="a commit with the old epoch"),
        end("P", "x", 5, commit=False, epoch=1, note="the next empty abort"),
        end("P", "x", 5, commit=False, note="two epochs old"),
        describe("x"),
    ]
    return Scenario("empty-aborts", steps, topics={}, transaction_versions=NEW_PROTOCOL)


def new_protocol_on_an_old_cluster() -> list[Scenario]:
    """The first request of a TV2 client that would be written down on `transaction.version` 0."""
    ended = [init("P", "x"), add_partitions("P", "x", {"t": [0]}), produce("P", "x"), end("P", "x", 5, settle=False)]
    emptied = [init("P", "x", 5), end("P", "x", 5, commit=False, settle=False)]
    produced = [init("P", "x", 5), produce("P", "x", version=12)]
    named = {"ending": ended, "empty-abort": emptied, "producing": produced}
    return [Scenario(f"tv2-client-on-tv0-{name}", steps, transaction_versions=(0,)) for name, steps in named.items()]


SCENARIOS: Final = (
    *(
        matrix(version, state, commit, epoch)
        for state in STATES
        for commit in RESULTS
        for epoch in (-1, 0, 1)
        for version in VERSIONS
    ),
    *(strangers(version) for version in VERSIONS),
    *(opposite(version, first) for version in (1, 4, 5) for first in RESULTS),
    *(chain(first, second) for first, second in ((1, 1), (4, 4), (5, 5), (3, 5), (5, 3))),
    *(implicit(version) for version in (12, 13)),
    previous_epoch_after_empty_abort(),
    *new_protocol_on_an_old_cluster(),
)
