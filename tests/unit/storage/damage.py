"""What can happen to a file while nobody looks."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Damage(NamedTuple):
    file: str
    what: str
    """One of missing, cut and flip."""
    position: int = 0
    bit: int | None = None
    """By default another one at each position."""

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if self.what == "missing":
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        if self.what == "cut":
            del data[self.position :]
        else:
            data[self.position] ^= 1 << (self.position % 8 if self.bit is None else self.bit)
        path.write_bytes(data)

    @property
    def topic(self) -> str:
        """Of the partition whose file it is, in a data folder."""
        return self.file.partition("/")[0].rpartition("-")[0] if "/" in self.file else ""


def damaged_copies(original: Path, damages: Iterable[Damage], scratch: Path) -> Iterator[tuple[Damage, Path]]:
    """For each damage a copy of the folder that has it, which is gone when the next one comes."""
    for damage in damages:
        folder = scratch / "copy"
        shutil.copytree(original, folder)
        damage.apply(folder)
        yield damage, folder
        shutil.rmtree(folder)
