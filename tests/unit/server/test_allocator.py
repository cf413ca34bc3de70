"""Frames that come and go do not fault their pages in anew."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncelog.server.allocator import KEPT_BYTES
from oncelog.testing import BrokerProcess

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


def _resident_bytes(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc can be told")
def test_memory_of_many_connections_is_given_back_when_they_have_gone(tmp_path: Path) -> None:
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 1_000:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 1_000), hard))
    process = BrokerProcess(tmp_path / "data", {"oncelog.open.files.max": 64}).start()
    try:
        idle_bytes = _resident_bytes(process.pid)
        host, port = process.bootstrap_servers.split(":")
        with contextlib.ExitStack() as clients:
            for _ in range(count):
                client = clients.enter_context(socket.create_connection((host, int(port))))
                client.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
                assert client.recv(4)
            open_bytes = _resident_bytes(process.pid)
            assert open_bytes > idle_bytes + count * 50_000, "connections cost less now: is this still needed?"
        deadline_s = time.monotonic() + 120
        while _resident_bytes(process.pid) > idle_bytes + KEPT_BYTES + 16 * 1024 * 1024:
            assert time.monotonic() < deadline_s, (idle_bytes, open_bytes, _resident_bytes(process.pid))
            time.sleep(0.1)
    finally:
        process.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
