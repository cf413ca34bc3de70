"""What drives the exchanges with other nodes goes on, whatever happens."""

from __future__ import annotations

import pytest

from oncelog.server.peers import RETRY_MS, Pump
from tests.virtual_clock import VirtualScheduler


def test_machine_that_fails_is_polled_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualScheduler()
    polled_ms: list[int] = []

    def poll() -> int | None:
        polled_ms.append(clock.monotonic_ms())
        if len(polled_ms) == 1:
            raise ValueError("injected")
        return 10 if len(polled_ms) == 2 else None

    pump = Pump(clock, poll)
    start_ms = clock.monotonic_ms()
    pump.kick()
    clock.advance_ms(RETRY_MS - 1)
    assert [at_ms - start_ms for at_ms in polled_ms] == [0]
    assert "injected" in caplog.text
    clock.advance_ms(100)
    assert [at_ms - start_ms for at_ms in polled_ms] == [0, RETRY_MS, RETRY_MS + 10]
