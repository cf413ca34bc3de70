"""Committed offsets in great numbers, and how long a broker takes to load what is left of them.

    python -m tests.crash.commits                  # a million commits of a hundred groups, as issue and docs have it
    python -m tests.crash.commits --commits 50000

The broker ends in four ways: killed and stopped, each right behind the last commit and when the cleaner has done its
work. Before the first stop there are some more commits, so that there is something to clean again. A reload is timed
by the clock on the wall: from the start of the process until every group has been asked for its offsets and has
answered.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from oncelog.testing import BrokerProcess
from tests.crash.killer import create

GROUPS = 100
PARTITIONS = 3
TOPIC = "t"
IN_FLIGHT = 200
COMMITS_BETWEEN = 150_000
"""Twice as many as the cleaner leaves alone."""
COMMIT_VERSION, FETCH_VERSION = 8, 5
_PLACEHOLDER = 0x0123456789ABCDEF
_LOADING_CODES = (14, 15, 16)


class Line:
    """A connection on which requests are sent many at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 20)

    def ask(self, frames: list[bytes]) -> list[bytes]:
        self._socket.sendall(b"".join(frames))
        return [self._file.read(int.from_bytes(self._file.read(4), "big")) for _ in frames]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def _frame(key: ApiKey, version: int, request: Any) -> bytes:
    return b"".join(encode_request_frame(key, version, 1, "commits", encode_request(key, version, request)))


def _commit_frames() -> list[tuple[bytes, bytes]]:
    """For each group and partition, the request before and after the offset."""
    frames = []
    for number in range(GROUPS * PARTITIONS):
        partition = OffsetCommitRequestPartition(partition_index=number // GROUPS, committed_offset=_PLACEHOLDER)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        group = f"group-{number % GROUPS}"
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
        before, _, after = _frame(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request).partition(
            _PLACEHOLDER.to_bytes(8, "big")
        )
        frames.append((before, after))
    return frames


def commit_many(bootstrap_servers: str, commits: int, *, after: int = 0) -> None:
    """All up to `commits`, of which `after` are done. Commit number n is of offset n, by group n % 100 and for each of
    its partitions in turn."""
    templates = _commit_frames()
    line = Line(bootstrap_servers)
    try:
        for first in range(after, commits, IN_FLIGHT):
            frames = []
            for number in range(first, min(commits, first + IN_FLIGHT)):
                before, after = templates[number % len(templates)]
                frames.append(before + number.to_bytes(8, "big") + after)
            answers = line.ask(frames)
            _check_commit(answers[-1])
    finally:
        line.close()


def _check_commit(answer: bytes) -> None:
    code = _decode(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, answer).topics[0].partitions[0].error_code
    if code:
        raise RuntimeError(f"a commit was refused with error {code}")


def _decode(key: ApiKey, version: int, answer: bytes) -> Any:
    view = memoryview(answer)
    _, position = parse_response_header(view, response_header_version(key, version))
    return decode_response(key, version, view[position:])


def fetch_all(bootstrap_servers: str) -> dict[str, list[int]]:
    """What each group has committed. Asks again while groups are being loaded."""
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(PARTITIONS)))]
    waiting = [f"group-{number}" for number in range(GROUPS)]
    found: dict[str, list[int]] = {}
    line = Line(bootstrap_servers)
    try:
        while waiting:
            frames = [
                _frame(ApiKey.OFFSET_FETCH, FETCH_VERSION, OffsetFetchRequest(group_id=group, topics=topics))
                for group in waiting
            ]
            again = []
            for group, answer in zip(waiting, line.ask(frames), strict=True):
                response = _decode(ApiKey.OFFSET_FETCH, FETCH_VERSION, answer)
                if response.error_code in _LOADING_CODES:
                    again.append(group)
                else:
                    found[group] = [partition.committed_offset for partition in response.topics[0].partitions]
            waiting = again
    finally:
        line.close()
    return found


def expected_after(commits: int) -> dict[str, list[int]]:
    newest: dict[str, list[int]] = {f"group-{number}": [-1] * PARTITIONS for number in range(GROUPS)}
    for number in range(max(0, commits - 2 * GROUPS * PARTITIONS), commits):
        newest[f"group-{number % GROUPS}"][number // GROUPS % PARTITIONS] = number
    return newest


@dataclass(frozen=True)
class Reload:
    ready_s: float
    """Until the broker says that it accepts clients."""
    answered_s: float
    """Until every group has answered."""
    cpu_s: float
    """That the broker has worked for it. It does not depend on what else the machine does."""


def time_reload(broker: BrokerProcess, commits: int) -> Reload:
    begun_s = time.perf_counter()
    broker.start()
    ready_s = time.perf_counter() - begun_s
    found = fetch_all(broker.bootstrap_servers)
    answered_s = time.perf_counter() - begun_s
    if found != expected_after(commits):
        raise AssertionError("a group does not have the offset that it committed last")
    return Reload(ready_s, answered_s, _cpu_s(broker.pid))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stored_bytes(data_dir: Path) -> int:
    """In files that the cleaner does not take away while they are counted."""
    size = 0
    for path in data_dir.glob("__consumer_offsets-*/*.log"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def wait_for_the_cleaner(data_dir: Path) -> None:
    """Until it finds nothing to do any more."""
    before, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < 5:
        size = stored_bytes(data_dir)
        if size != before:
            before, since_s = size, time.monotonic()
        time.sleep(0.1)


def _report(broker: BrokerProcess, commits: int, how: str, end: Callable[[], object]) -> None:
    end()
    size = stored_bytes(broker.data_dir)
    reload = time_reload(broker, commits)
    _say(f"{how}: {size} bytes, ready in {reload.ready_s:.2f} s, answered in {reload.answered_s:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_000_000)
    commits = parser.parse_args().commits
    with tempfile.TemporaryDirectory(prefix="oncelog-commits-") as folder:
        broker = BrokerProcess(Path(folder) / "data", log_level="warning").start()
        try:
            create(broker, TOPIC, {})
            begun_s = time.perf_counter()
            commit_many(broker.bootstrap_servers, commits)
            took_s = time.perf_counter() - begun_s
            _say(f"{commits} commits of {GROUPS} groups in {took_s:.1f} s: {commits / took_s:.0f} per second")
            _report(broker, commits, "killed at once", broker.kill)
            more = commits + min(commits, COMMITS_BETWEEN)
            commit_many(broker.bootstrap_servers, more, after=commits)
            _report(broker, more, "stopped at once", broker.stop)
            wait_for_the_cleaner(broker.data_dir)
            _report(broker, more, "killed when the cleaner was done", broker.kill)
            _report(broker, more, "stopped when the cleaner was done", broker.stop)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
