"""Data folders with a metadata journal, as Oncelog kept one before: see README.md beside this file."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
SETTINGS: Final = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
"""Of the brokers that wrote them."""


def unpack(name: str, into: Path) -> Path:
    """Unpack the folder `name`, "stopped" or "killed", below `into`, and give its path."""
    folder = into / name
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder
