"""A few histories in each run. `python -m tests.controller_simulation` plays more of them."""

from __future__ import annotations

import pytest

from tests.controller_simulation.history import History

SEEDS = range(10)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_controllers_and_brokers(seed: int) -> None:
    History(seed).play()
