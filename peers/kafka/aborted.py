"""Whether `.txnindex` files say what the logs say: DumpLogSegments prints them, but compares them with nothing.

The expected entries are derived from the dumped batches of a partition: an abort marker that ends a transaction with
data gives one entry, in the segment that holds the marker, with the first offset of the transaction and the last
stable offset after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 34

_BATCH: Final = re.compile(
    r"baseOffset: (?P<base>\d+) lastOffset: \d+ count: \d+ .*producerId: (?P<producer>-?\d+) "
    r".*isTransactional: (?P<transactional>\w+) isControl: (?P<control>\w+)"
)
_MARKER: Final = re.compile(r"\| offset: (\d+) .*endTxnMarker: (COMMIT|ABORT)")
_ENTRY: Final = re.compile(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (-?\d+)")


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def by_file(stdout: str) -> dict[Path, list[str]]:
    """The tool's output, by the file it was dumping."""
    found: dict[Path, list[str]] = {}
    lines: list[str] = []
    for line in stdout.splitlines():
        if line.startswith("Dumping "):
            lines = found.setdefault(Path(line.removeprefix("Dumping ")), [])
        else:
            lines.append(line)
    return found


def complaints(dumped: Mapping[Path, Sequence[str]]) -> list[str]:
    """What is wrong with the transaction indexes among these files; needs the dumps of the logs beside them."""
    found = [f"{file}: {file.stat().st_size} bytes are no whole entries" for file in _indexes(dumped) if _is_torn(file)]
    for folder in sorted({file.parent for file in dumped}):
        logs = sorted(file for file in dumped if file.parent == folder and file.suffix == ".log")
        for log, expected in zip(logs, _expected(logs, dumped), strict=True):
            index = log.with_suffix(".txnindex")
            actual = [_entry(line) for line in dumped.get(index, ())]
            if actual != expected:
                found.append(f"{index}: has {actual}, its log says {expected}")
    return found


def _indexes(dumped: Mapping[Path, Sequence[str]]) -> Iterator[Path]:
    return (file for file in dumped if file.suffix == ".txnindex")


def _is_torn(file: Path) -> bool:
    return file.stat().st_size % ENTRY_BYTES != 0


def _entry(line: str) -> Aborted:
    match = _ENTRY.search(line)
    if match is None:
        raise ValueError(f"not an entry of a transaction index: {line}")
    return Aborted(*map(int, match.groups()))


def _expected(logs: Sequence[Path], dumped: Mapping[Path, Sequence[str]]) -> Iterator[list[Aborted]]:
    """The entries of each segment in turn, carrying open transactions from one to the next."""
    open_since: dict[int, int] = {}
    for log in logs:
        entries: list[Aborted] = []
        producer_id = -1
        for line in dumped[log]:
            if batch := _BATCH.search(line):
                producer_id = int(batch["producer"])
                if batch["transactional"] == "true" and batch["control"] == "false":
                    open_since.setdefault(producer_id, int(batch["base"]))
            elif marker := _MARKER.search(line):
                offset = int(marker[1])
                first = open_since.pop(producer_id, None)
                if first is not None and marker[2] == "ABORT":
                    entries.append(Aborted(producer_id, first, offset, min(open_since.values(), default=offset + 1)))
        yield entries
