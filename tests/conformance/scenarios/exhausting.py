"""Epochs at their end: 32766 is the last that a client is given, then the producer id is replaced."""

from __future__ import annotations

import dataclasses
from typing import Final

from tests.conformance.scenario import Scenario, Step
from tests.conformance.steps import add_partitions, await_state, describe, end, fetch, init, produce, producers, same

EXHAUSTED: Final = 32766


def exhausted(timeout_ms: int = 60_000) -> list[Step]:
    """A producer P at epoch 32766."""
    again = dataclasses.replace(init("P", "x", timeout_ms=timeout_ms, note="32766 times"), repeat=EXHAUSTED)
    return [init("P", "x", timeout_ms=timeout_ms), again]


def initialised() -> Scenario:
    """InitProducerId at the last epoch gives a new producer id, also to the repetition of the request that got it.

    EndTxn of the old protocol leaves the epoch as it is.
    """
    steps = [
        *exhausted(),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x"),
        end("P", "x"),
        describe("x"),
        init("Q", "x", expected=same("P"), note="current"),
        describe("x"),
        init("Q", "x", expected=same("P"), note="repeated after a lost answer"),
        init("R", "x", note="a new instance"),
        init("Q", "x", expected=same("P"), keep=False, note="repeated too late"),
    ]
    return Scenario("initialised", steps, transaction_versions=(2,), slow=True)


def over_open() -> Scenario:
    """A second instance over an open transaction of the last epoch."""
    steps = [
        *exhausted(),
        produce("P", "x", version=12),
        init("Q", "x", note="the second instance"),
        describe("x"),
        fetch(),
        producers(),
        produce("Q", "x", version=12),
        end("Q", "x", 5),
        fetch(),
    ]
    return Scenario("over-open", steps, transaction_versions=(2,), slow=True)


def ended() -> Scenario:
    """EndTxn of TV2 at the last epoch answers with a new producer id, also to a repetition."""
    steps = [
        *exhausted(),
        produce("P", "x", version=12),
        end("P", "x", 5, note="commit"),
        end("P", "x", 5, keep=True, note="repeated"),
        describe("x"),
        fetch(),
        producers(),
        produce("P", "x", version=12),
        end("P", "x", 5, commit=False, keep=True),
        producers(),
        fetch(committed=False),
    ]
    return Scenario("ended", steps, transaction_versions=(2,), slow=True)


def timed_out() -> Scenario:
    """KAFKA-20090: the time-out of a transaction of the last epoch replaces the producer id."""
    steps = [
        *exhausted(timeout_ms=500),
        produce("P", "x", version=12),
        await_state("x", "CompleteAbort"),
        producers(),
        fetch(),
        end("P", "x", 5, commit=False, keep=True),
        produce("P", "x", version=12),
        end("P", "x", 5),
        fetch(),
    ]
    return Scenario("timed-out", steps, transaction_versions=(2,), slow=True)


SCENARIOS: Final = (initialised(), over_open(), ended(), timed_out())
