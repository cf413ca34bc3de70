"""Apache Kafka's DumpLogSegments over a data folder: what it prints, and what it complains about.

    complaints = check_data_dir(folder)          # an empty list means that Kafka reads every file as its own

Every `.log` is read with deep iteration, internal topics with their decoders; every `.index` and `.timeindex` is
compared with its log entry by entry and passes the sanity check that Kafka makes at start; `.snapshot` files are read
whole, and `.txnindex` files compared with the markers in the logs (aborted.py).

    python -m peers.kafka.dump FOLDER            # the same by hand: prints the dumps, then the complaints
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from peers.kafka.aborted import by_file
from peers.kafka.aborted import complaints as transaction_index_complaints
from peers.kafka.jars import run_java

DUMP_TOOL: Final = "org.apache.kafka.tools.DumpLogSegments"
MESSAGE_SIZE_MAX: Final = 64 * 1024 * 1024
FILES_PER_RUN_MAX: Final = 500

_SUFFIXES: Final = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot"})
_COMPACTED: Final = ("__consumer_offsets", "__transaction_state")
_COMPLAINTS_ON_STDOUT: Final = re.compile(r"isvalid: false|isValid: false|invalid bytes at the end of|skipping unknown")
_GAPS: Final = "Non-consecutive offsets in "
_DECODERS: Final = {
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}


@dataclass(frozen=True)
class Dump:
    """What one run of the tool said about some files."""

    files: tuple[Path, ...]
    exit_code: int
    stdout: str
    stderr: str

    def complaints(self, *, gaps_allowed_in: Sequence[str] = ()) -> list[str]:
        """Lines that are not a plain dump. Compacted logs have gaps between offsets, which is no complaint."""
        found = [line for line in self.stdout.splitlines() if _COMPLAINTS_ON_STDOUT.search(line)]
        found += list(_without_gaps(self.stderr.splitlines(), gaps_allowed_in))
        if self.exit_code != 0:
            found.append(f"DumpLogSegments ended with {self.exit_code}")
        dumped = {line.removeprefix("Dumping ") for line in self.stdout.splitlines() if line.startswith("Dumping ")}
        found += [f"not dumped: {file}" for file in self.files if str(file) not in dumped]
        return found


def _without_gaps(lines: Iterable[str], gaps_allowed_in: Sequence[str]) -> Iterator[str]:
    """Leave out the gaps of compacted topics, and the one that the tool sees before the first record of any later
    segment.
    """
    file = ""
    for line in lines:
        if line.startswith(_GAPS):
            file = line.removeprefix(_GAPS)
        elif " is followed by " in line:
            if topic_of(Path(file)) not in gaps_allowed_in and not line.startswith("  -1 "):
                yield f"{_GAPS}{file}: {line.strip()}"
        elif line.strip():
            yield line


def topic_of(file: Path) -> str:
    return file.parent.name.rpartition("-")[0]


def dump_files(files: Sequence[Path], *options: str, timeout_s: float = 300) -> Dump:
    """One run of DumpLogSegments over these files, with these options."""
    run = run_java(
        DUMP_TOOL,
        *("--max-message-size", str(MESSAGE_SIZE_MAX), *options),
        *("--files", ",".join(str(file) for file in files)),
        timeout_s=timeout_s,
    )
    return Dump(tuple(files), run.returncode, run.stdout, run.stderr)


def segment_files(data_dir: Path, *, metadata: bool = False) -> list[Path]:
    """Files that the tool reads, in the folder of every partition; KRaft's own log only when asked for."""
    found = sorted(path for path in data_dir.glob("*-*/*") if path.suffix in _SUFFIXES and path.parent.is_dir())
    return [path for path in found if metadata or topic_of(path) != "__cluster_metadata"]


def _decoder(file: Path) -> tuple[str, ...]:
    decoder = _DECODERS.get(topic_of(file))
    return (decoder,) if decoder is not None and file.suffix == ".log" else ()


def dump_data_dir(data_dir: Path, *, metadata: bool = False) -> list[Dump]:
    """Everything the tool prints about a folder: contents with decoders, then the sanity check of the indexes."""
    files = segment_files(data_dir, metadata=metadata)
    dumps = []
    for decoder, group in groupby(sorted(files, key=_decoder), key=_decoder):
        dumps += [dump_files(chunk, "--deep-iteration", *decoder) for chunk in _chunks(list(group))]
    indexes = [file for file in files if file.suffix in (".index", ".timeindex")]
    return dumps + [dump_files(chunk, "--index-sanity-check") for chunk in _chunks(indexes)]


def _chunks(files: list[Path]) -> list[list[Path]]:
    return [files[start : start + FILES_PER_RUN_MAX] for start in range(0, len(files), FILES_PER_RUN_MAX)]


def check_data_dir(data_dir: Path, *, compacted_topics: Sequence[str] = (), metadata: bool = False) -> list[str]:
    """The complaints of DumpLogSegments about a stopped broker's folder; an empty list is a pass."""
    allowed = (*_COMPACTED, *compacted_topics)
    found = []
    contents: dict[Path, list[str]] = {}
    for dump in dump_data_dir(data_dir, metadata=metadata):
        found += dump.complaints(gaps_allowed_in=allowed)
        contents |= {
            file: lines for file, lines in by_file(dump.stdout).items() if file.suffix in (".log", ".txnindex")
        }
    # The cleaner drops aborted data and the entries that told of it, so a cleaned log no longer says what its index
    # must hold.
    uncleaned = {file: lines for file, lines in contents.items() if topic_of(file) not in compacted_topics}
    return found + transaction_index_complaints(uncleaned)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m peers.kafka.dump FOLDER", file=sys.stderr)
        return 2
    complaints = []
    for dump in dump_data_dir(Path(arguments[0])):
        print(dump.stdout, end="")
        complaints += dump.complaints(gaps_allowed_in=_COMPACTED)
    print("\n".join(["", f"complaints: {len(complaints)}", *complaints]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
