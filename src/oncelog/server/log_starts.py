"""Log starts that DeleteRecords has moved, on disk before it is answered: no kill brings back what it has deleted.

One checkpoint runs at a time. Who comes meanwhile shares the next one with all others who do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.storage.log import Log
from oncelog.storage.log_dir import CheckpointResult

Saved: TypeAlias = CheckpointResult | Exception


class LogStarts:
    def __init__(self, checkpoint: Callable[[Iterable[Log]], Promise[Saved]]) -> None:
        self._checkpoint = checkpoint
        self._waiting: list[tuple[tuple[Log, ...], Promise[Saved]]] = []
        self._is_running = False

    def save(self, logs: Iterable[Log]) -> Promise[Saved]:
        """Promises the result of a checkpoint that has the starts which these logs have now."""
        saved: Promise[Saved] = Promise()
        self._waiting.append((tuple(logs), saved))
        if not self._is_running:
            self._run()
        return saved

    def _run(self) -> None:
        self._is_running = True
        taken, self._waiting = self._waiting, []
        logs = dict.fromkeys(log for group, _ in taken for log in group)
        self._write(logs).then(lambda result: self._finish([saved for _, saved in taken], result))

    def _write(self, logs: Iterable[Log]) -> Promise[Saved]:
        try:
            return self._checkpoint(logs)
        except (KafkaError, OSError) as error:
            return Promise.resolved(error)

    def _finish(self, promises: Iterable[Promise[Saved]], result: Saved) -> None:
        self._is_running = False
        for saved in promises:
            saved.resolve(result)
        if self._waiting and not self._is_running:
            self._run()
