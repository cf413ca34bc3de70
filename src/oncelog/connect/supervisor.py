"""Runs connectors, each in a thread of its own, and starts them again after temporary errors.

state       means
starting    it connects, claims, or takes its snapshot
running     it has committed since it was started
waiting     a temporary error; it starts again after a pause, which doubles up to a minute
stopped     it cannot go on without a person; `error` says why
ended       it was asked to end
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Final

from oncelog.client import BufferExhausted, KafkaError
from oncelog.connect.errors import ConnectorStopped
from oncelog.connect.kinds import Kind
from oncelog.connect.progress import Status
from oncelog.core.config import ConfigError
from oncelog.core.errors import ErrorCode

PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread of this process computes while another one wants to. With Python's own 5 ms, a thread that has
waited for its database waits as long again for one that prepares rows, after each message: they would hardly overlap.
"""
PERMANENT: Final = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    )
)
"""Errors of a broker that another start would find again."""
logger = logging.getLogger("oncelog.connect")


class SupervisedConnector:
    def __init__(self, kind: Kind, on_change: Callable[[Status], None], *, until_current: bool = False) -> None:
        self.status = Status(kind.name)
        self._kind = kind
        self._on_change = on_change
        self._until_current = until_current
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"connector {kind.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._supervise()
            self._change("ended")
        except (ConnectorStopped, ConfigError) as error:
            self._change("stopped", str(error))
        except Exception as error:  # noqa: BLE001  # the last resort of a thread: say it, rather than die unseen
            logger.error("%s: %s", self.status.name, traceback.format_exc())
            self._change("stopped", f"{type(error).__name__}: {error}")
        finally:
            self._kind.close()

    def _supervise(self) -> None:
        pause_s = PAUSE_FIRST_S
        temporary: tuple[type[Exception], ...] = (KafkaError, BufferExhausted, OSError, *self._kind.temporary)
        while not self._stop.is_set():
            commits = self.status.progress.commits
            self.status.progress.is_current = False
            self._change("starting", self.status.error)
            try:
                with self._kind.task(self.status.progress) as task:
                    task.run(self._stopping)
                return
            except temporary as error:
                if isinstance(error, KafkaError) and error.code in PERMANENT:
                    raise ConnectorStopped(str(error)) from error
                pause_s = PAUSE_FIRST_S if self.status.progress.commits > commits else min(pause_s * 2, PAUSE_MAX_S)
                self.status.restarts += 1
                self._change("waiting", f"{type(error).__name__}: {error}")
            self._stop.wait(pause_s)

    def _stopping(self) -> bool:
        return self._stop.is_set() or (self._until_current and self.status.progress.is_current)

    def _change(self, state: str, error: str = "") -> None:
        self.status.state, self.status.error = state, error
        self.status.since_ms = int(time.time() * 1000)
        self._on_change(self.status)


class Supervisor:
    """All connectors of a process."""

    def __init__(
        self, kinds: Iterable[Kind], on_change: Callable[[Status], None], *, until_current: bool = False
    ) -> None:
        self.connectors = [SupervisedConnector(kind, on_change, until_current=until_current) for kind in kinds]

    @property
    def statuses(self) -> list[Status]:
        return [connector.status for connector in self.connectors]

    def start(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        for connector in self.connectors:
            connector.start()

    def has_ended(self, timeout_s: float) -> bool:
        return all(connector.join(timeout_s) for connector in self.connectors)

    def stop(self) -> None:
        """Ask all to end, and wait for it, but not for ever: what is not committed is aborted or rolled back anyway."""
        for connector in self.connectors:
            connector.stop()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for connector in self.connectors:
            connector.join(max(0.0, deadline_s - time.monotonic()))
