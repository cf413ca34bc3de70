"""Waiting for a condition, with a deadline that a busy machine meets as well."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], what: str = "what was waited for did not happen", *, timeout_s: float = 120
) -> None:
    """`what` is the message of the failure."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
