"""The memory of Spark's Python workers while a batch is written, from /proc: Linux only."""

from __future__ import annotations

import os
from pathlib import Path

PEAK_FIELD = "VmHWM:"
RESET_PEAK = "5"


def worker_pids() -> list[int]:
    """Python processes that Spark has started below this one."""
    return [pid for pid in _descendants(os.getpid()) if b"pyspark.daemon" in _command_line(pid)]


def forget_peaks() -> None:
    """Let the peak of every worker begin at what it holds now."""
    for pid in worker_pids():
        _write(Path(f"/proc/{pid}/clear_refs"), RESET_PEAK)


def peak_bytes() -> int:
    """The highest peak of any worker since `forget_peaks`."""
    return max((_peak(pid) for pid in worker_pids()), default=0)


def _peak(pid: int) -> int:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(PEAK_FIELD):
            return int(line.split()[1]) * 1024
    return 0


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            stat = _read(folder / "stat")
            if stat:
                parent = int(stat.rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _command_line(pid: int) -> bytes:
    return _read(Path(f"/proc/{pid}/cmdline")).encode()


def _read(path: Path) -> str:
    """Nothing when the process has ended meanwhile."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except ProcessLookupError:
        return
