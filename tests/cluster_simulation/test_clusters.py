"""Histories of a replicated partition keep every promise, and are eventful enough to break them."""

from __future__ import annotations

import pytest

from tests.cluster_simulation.history import Tally, play

pytestmark = pytest.mark.simulation

SEEDS = range(1, 73)
_tallies: dict[int, Tally] = {}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    _tallies[seed], failure = play(seed)
    assert failure is None, failure.text


def test_histories_are_eventful() -> None:
    """In ten of them. What never happens is not tested."""
    tallies = [_tallies.get(seed) or play(seed)[0] for seed in SEEDS[:10]]
    assert all(tally.committed > 20 and tally.acknowledged > 5 for tally in tallies)
    assert sum(tally.truncations for tally in tallies) >= 5
    assert sum(tally.leader_epochs for tally in tallies) >= 30
    assert sum(tally.compared_states for tally in tallies) >= 50


def test_a_seed_is_a_history() -> None:
    assert play(3) == play(3)
