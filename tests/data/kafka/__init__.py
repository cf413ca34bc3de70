"""Data folders written by Apache Kafka: see README.md beside this file for what they hold and how they are made."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
NAMES: Final = ("tv0", "tv1", "tv2", "tv2-killed")
SECURED: Final = "secured"
"""With users, ACLs and quotas."""


def unpack(name: str, into: Path) -> Path:
    """Unpack the folder `name` below `into` and give its path: the `log.dirs` of a broker."""
    folder = into / name
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def dump(name: str) -> dict[str, list[str]]:
    """The lines that DumpLogSegments printed, by file (`topic-0/00000000000000000000.log`)."""
    lines: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lzma.decompress((HERE / f"{name}.dump.txt.xz").read_bytes()).decode().splitlines():
        if line.startswith("Dumping "):
            current = lines.setdefault(line.removeprefix("Dumping "), [])
        else:
            current.append(line)
    return lines


def contents(name: str) -> dict[str, Any]:
    """What Kafka's own clients read from the folder while its broker ran."""
    found: dict[str, Any] = json.loads(lzma.decompress((HERE / f"{name}.json.xz").read_bytes()))
    return found
