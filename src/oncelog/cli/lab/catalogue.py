"""The labs by name. Modules are imported when a lab is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from oncelog.cli.lab.stage import Stage


class Lab(NamedTuple):
    module: str
    summary: str

    def load(self) -> Callable[[Stage], None]:
        run: Callable[[Stage], None] = importlib.import_module(f"oncelog.cli.lab.{self.module}").run
        return run


LABS: Final = {
    "fencing": Lab("fencing", "Two producers, one transactional id: the second shuts out the first."),
    "filter": Lab("aborted_filter", "Six batches of two producers: how a reader leaves out what was aborted."),
    "long-transaction": Lab("long_transaction", "One open transaction holds back everything behind it."),
    "coordinator-crash": Lab("coordinator_crash", "The coordinator dies at three moments; what becomes of each."),
    "interleaved": Lab("interleaved", "Two transactions and a plain record between them: delivery in offset order."),
    "copy": Lab("copying", "Consume, transform, produce with two instances, one of them killed: nothing twice."),
    "delivery-levels": Lab("delivery_levels", "The same crash at most once, at least once and exactly once."),
    "idempotence": Lab("idempotence", "A batch sent twice, and which settings go together."),
}
