"""Time-outs and expiry: what a producer meets after the coordinator gave up on its transaction or forgot its id."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenario import NEW_PROTOCOL, Scenario, Step
from tests.conformance.steps import (
    add_partitions,
    await_state,
    describe,
    end,
    fetch,
    init,
    list_offsets,
    produce,
    producers,
    same,
)

TIMEOUT_MS: Final = 2000
"""A busy machine begins a transaction and writes to it in that time."""


def timed_out_old(produce_version: int, end_version: int, init_version: int) -> Scenario:
    """A client of the old protocol after the time-out of its transaction."""
    steps = [
        init("P", "x", init_version, timeout_ms=TIMEOUT_MS),
        add_partitions("P", "x", {"t": [0, 1]}),
        produce("P", "x", version=produce_version),
        await_state("x", "CompleteAbort"),
        list_offsets(committed=True),
        producers(),
        producers(partition=1),
        produce("P", "x", version=produce_version, sequence=1, note="writing on"),
        produce("P", "x", version=produce_version, partition=1, note="to the partition without data"),
        add_partitions("P", "x", {"t": [0]}, note="adding"),
        end("P", "x", end_version, note="committing"),
        end("P", "x", end_version, commit=False, note="aborting"),
        init("Q", "x", init_version, expected=same("P"), keep=False, note="going on with its own epoch"),
        describe("x"),
        init("R", "x", init_version, note="starting anew"),
        fetch(),
        fetch(committed=False),
    ]
    return Scenario(f"timed-out-old-p{produce_version}-e{end_version}-i{init_version}", steps)


def timed_out_new(ask_first: str) -> Scenario:
    """A client of TV2 after the time-out of its transaction, by what it does first."""
    steps = [
        init("P", "x", 5, timeout_ms=TIMEOUT_MS),
        produce("P", "x", version=12),
        await_state("x", "CompleteAbort"),
        list_offsets(committed=True),
        producers(),
        produce("P", "x", version=12, sequence=1, note="writing on"),
    ]
    steps += {
        "commit": [end("P", "x", 5), end("P", "x", 5, commit=False, keep=True)],
        "abort": [end("P", "x", 5, commit=False, keep=True)],
        "init": [init("P", "x", 5, expected=same("P"))],
    }[ask_first]
    steps += [
        describe("x"),
        produce("P", "x", version=12, note="the next transaction"),
        end("P", "x", 5),
        fetch(),
        fetch(committed=False),
    ]
    return Scenario(f"timed-out-new-{ask_first}", steps, transaction_versions=NEW_PROTOCOL)


def expired(init_version: int) -> Scenario:
    """The id is forgotten after its expiration: its old producer is unknown, and may be given a new producer id."""
    gone = Step(
        "describe_transactions",
        0,
        {"transactional_ids": [init("P", "x").fields["transactional_id"]]},
        until={"transaction_states.0.error_code": 105},
        note="until it is forgotten",
    )
    steps = [
        init("P", "x", init_version),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x"),
        end("P", "x"),
        gone,
        add_partitions("P", "x", {"t": [0]}, note="adding"),
        end("P", "x", note="committing", settle=False),
        end("P", "x", 5, commit=False, note="aborting", settle=False),
        produce("P", "x", sequence=1, note="writing on"),
        produce("P", "x", sequence=1, version=12, note="writing on, newer client"),
        init("Q", "x", 4, expected=same("P"), note="going on with its own epoch"),
        describe("x"),
        producers(),
    ]
    return Scenario(f"expired-v{init_version}", steps, profile="expiring", transaction_versions=(2,))


SCENARIOS: Final = (
    *(timed_out_old(*versions) for versions in ((9, 1, 3), (10, 3, 4), (11, 4, 5))),
    *(timed_out_new(ask_first) for ask_first in ("commit", "abort", "init")),
    *(expired(version) for version in (0, 4)),
)
