"""python -m tests.metadata_log_simulation [--seeds N] [--from-seed S]: plays histories; the first bad one ends it."""

from __future__ import annotations

from tests import histories
from tests.metadata_log_simulation.history import History

histories.main(lambda seed: History(seed).play())
