"""Frames that come and go do not fault their pages in anew."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from oncelog.server.allocator import keep_freed_memory
if {keep}:
    keep_freed_memory()
def frames():
    for _ in range(200):
        first, second = bytearray(300_000), bytearray(300_000)
        del first, second
frames()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*, keep: bool) -> int:
    # A process of its own: the setting is for good. Whatever the environment says of malloc would decide instead.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    code = _FAULTS.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc can be told")
def test_memory_of_frames_is_used_again() -> None:
    assert _faults(keep=True) < 200
    assert _faults(keep=False) > 2000, "glibc no longer hands memory back by itself: is this still needed?"


def test_a_library_that_cannot_be_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncelog.server import allocator

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("asked for mallopt"))
    allocator.keep_freed_memory()
