"""A few histories in each run. `python -m tests.metadata_log_simulation` plays more of them."""

from __future__ import annotations

import pytest

from tests.metadata_log_simulation.history import History

SEEDS = range(60)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_three_controllers(seed: int) -> None:
    History(seed).play()
