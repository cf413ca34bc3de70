"""A broker as a process, and what the process has spent."""

from __future__ import annotations

import mmap
import os
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from oncelog.testing import BrokerProcess

_LONGEST = struct.Struct("d")
_RESET_PEAK = "5"
_LOOP_WATCH = Path(__file__).parent / "loop_watch"
_TLS = Path(__file__).parents[1] / "data" / "tls"


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    memory_bytes: int
    log_bytes: int
    descriptors: int

    def __sub__(self, before: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) - getattr(before, field.name) for field in fields(self)))


class MeasuredBroker(BrokerProcess):
    """Its loop is watched (`loop_watch`)."""

    def __init__(self, data_dir: Path, settings: Mapping[str, object], *, has_tls: bool = False) -> None:
        self.tls: ssl.SSLContext | None = None
        """What clients need."""
        arguments: list[str] = []
        if has_tls:
            self.tls = ssl.create_default_context(cafile=_TLS / "ca.pem")
            safe = {"listener.security.protocol.map": "SAFE:SSL", "ssl.keystore.location": _TLS / "broker.pem"}
            settings, arguments = {**settings, **safe}, ["--listen", "SAFE://127.0.0.1:0"]
        super().__init__(data_dir, settings, arguments=arguments)
        self._watch_path = data_dir.with_name(data_dir.name + ".stretch")
        self._watch_path.write_bytes(bytes(_LONGEST.size))
        with self._watch_path.open("r+b") as file:
            self._watch = mmap.mmap(file.fileno(), _LONGEST.size)

    def start_watched(self) -> MeasuredBroker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ONCELOG_LOOP_WATCH", str(self._watch_path))
            patch.setenv("PYTHONPATH", str(_LOOP_WATCH), prepend=os.pathsep)
            self.start()
        return self

    def take_longest_stretch_s(self) -> float:
        """CPU time of the loop, since it was last taken."""
        (longest_s,) = _LONGEST.unpack(self._watch)
        self._watch[:] = bytes(_LONGEST.size)
        return float(longest_s)

    def forget_peak_memory(self) -> None:
        (Path("/proc") / str(self.pid) / "clear_refs").write_text(_RESET_PEAK)

    def peak_memory_bytes(self) -> int:
        """The most that was resident since the start of the process, or since it was last forgotten."""
        status = (Path("/proc") / str(self.pid) / "status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10

    def cost(self) -> Cost:
        """What the process has spent since its start. On Linux."""
        process = Path("/proc") / str(self.pid)
        stat = (process / "stat").read_text().rpartition(")")[2].split()
        return Cost(
            (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
            int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            self.log_path.stat().st_size,
            len(list((process / "fd").iterdir())),
        )


@contextmanager
def measured_broker(folder: Path, settings: Mapping[str, object], *, has_tls: bool = False) -> Iterator[MeasuredBroker]:
    broker = MeasuredBroker(folder / "data", settings, has_tls=has_tls).start_watched()
    try:
        yield broker
    finally:
        broker.stop()
