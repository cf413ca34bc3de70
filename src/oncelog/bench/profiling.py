"""A workload on a broker under py-spy: where its time goes, as a flame graph.

The broker is warmed up first; the profiler watches only while the workload runs, from outside, without changing it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from oncelog.bench.cells import CELLS, Bench
from oncelog.bench.drive import Drive, PreparationError, drive
from oncelog.bench.side import Side
from oncelog.bench.workload import Workload
from oncelog.child_process import ChildProcess

MISSING: Final = "the profiler py-spy is missing: pip install 'oncelog[bench]', or pip install py-spy"
_WRITE_S: Final = 60
_ATTACH_S: Final = 1.0


class ProfilerError(Exception):
    """There is no flame graph; the text says why and what to do."""


def find_profiler() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ProfilerError(MISSING)
    return found


def profile(
    workload: Workload,
    side: Side,
    path: Path,
    seconds: float,
    rate: int,
    progress: Callable[[str], None],
    *,
    with_native: bool = False,
    do: Drive = drive,
) -> None:
    profiler = find_profiler()
    kind = CELLS[workload.kind]
    if kind.needs_ownership:
        raise ProfilerError(f"{workload.name} starts and stops its brokers: there is none to look at for long")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
        bench = Bench(side, Path(folder), do)
        try:
            cell = kind(bench, workload)
            progress(f"{workload.name}: preparing")
            cell.prepare()
            _measured(cell.measure().problem)
            progress(f"{workload.name}: profiling for {seconds:g} s")
            with _Watching(profiler, bench.shared_pid or 0, path, rate, with_native):
                finish_s = time.monotonic() + seconds
                while time.monotonic() < finish_s:
                    _measured(cell.measure().problem)
        except PreparationError as error:
            raise ProfilerError(f"{workload.name} failed: {error}") from error
        finally:
            bench.close()


def _measured(problem: str) -> None:
    if problem:
        raise ProfilerError(f"the workload failed: {problem}")


class _Watching:
    """py-spy on a process; it writes its file when it is interrupted."""

    def __init__(self, profiler: str, pid: int, path: Path, rate: int, with_native: bool) -> None:
        self._path = path
        self._command = [profiler, "record", "--pid", str(pid), "--output", str(path), "--rate", str(rate),
                         "--duration", "unlimited", *(["--native"] if with_native else [])]  # fmt: skip
        self._process: ChildProcess[str] | None = None

    def __enter__(self) -> None:
        self._path.unlink(missing_ok=True)
        self._process = ChildProcess(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(_ATTACH_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=_WRITE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        if error is None and not self._path.exists():
            raise ProfilerError(f"py-spy left no flame graph. It says: {said.strip()[-800:]}")
