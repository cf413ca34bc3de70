"""A broker or controller of Oncelog with the calls of a `KafkaServer`, and as much time as a busy machine needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from oncelog.testing import BrokerProcess
from oncelog.testing.zookeeper import free_ports

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 90.0


class OncelogNode(BrokerProcess):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.port = self.port or free_ports(1)[0]  # which nobody else takes while it is restarted

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, extra_arguments: Sequence[str] = ()) -> Self:
        super().start(timeout_s=timeout_s, extra_arguments=extra_arguments)
        return self

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Raises if it does not stop in order."""
        code = super().stop(timeout_s=timeout_s)
        if code:
            raise RuntimeError(f"{self.data_dir} did not stop in order within {timeout_s:.0f} s: exit code {code}")
        return code

    def restart(self) -> Self:
        self.stop()
        return self.start()
