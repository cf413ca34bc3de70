"""What pages share, and for how long."""

from __future__ import annotations

import pytest

from oncelog.console import page
from oncelog.console.page import RecentResults


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_what_was_read_of_a_log_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction may have removed some of it: a page that stays open would show it for ever."""
    clock, recent = Clock(), RecentResults()
    monkeypatch.setattr(page, "time", clock)
    first: list[int] = recent.known(("log",), list)
    first.append(1)
    clock.now_s += page.KNOWN_S
    assert recent.known(("log",), list) is first
    assert recent.known(("other",), list) == []
    clock.now_s += 1
    again: list[int] = recent.known(("log",), list)
    assert again == []
    assert recent.known(("log",), list) is again
