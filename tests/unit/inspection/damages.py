"""Ways to damage a data folder, each by the bytes of one file, for `test_verify_damages`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from oncelog.protocol.batch import crc_of, iter_headers

Damage = Callable[[Path], None]

LOG = "txn-0/00000000000000000029.log"
LAST_LOG = "txn-0/00000000000000000118.log"


def change(path: Path, edit: Callable[[bytearray], bytearray | bytes | None]) -> None:
    content = bytearray(path.read_bytes())
    changed = edit(content)
    path.write_bytes(content if changed is None else changed)


def batch_positions(path: Path) -> list[int]:
    return [position for position, _ in iter_headers(path.read_bytes())]


def flip(name: str, position: int) -> Damage:
    def edit(content: bytearray) -> None:
        content[position] ^= 0xFF

    return lambda folder: change(folder / name, edit)


def flip_in_batch(name: str, number: int) -> Damage:
    """A byte of the records of one batch."""
    return lambda folder: flip(name, batch_positions(folder / name)[number] + 70)(folder)


def cut(name: str, size: int) -> Damage:
    """Take bytes from the end."""
    return lambda folder: change(folder / name, lambda content: content[:-size])


def append(name: str, data: bytes) -> Damage:
    return lambda folder: change(folder / name, lambda content: content + data)


def remove(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def put(name: str, position: int, layout: str, value: int) -> Damage:
    """Overwrite a field; a negative position counts from the end."""

    def edit(content: bytearray) -> None:
        struct.pack_into(layout, content, position if position >= 0 else len(content) + position, value)

    return lambda folder: change(folder / name, edit)


def put_in_batch(name: str, number: int, offset: int, layout: str, value: int) -> Damage:
    """Overwrite a field of a batch's header and make the checksum right again."""

    def damage(folder: Path) -> None:
        path = folder / name
        positions = [*batch_positions(path), path.stat().st_size]
        start, size = positions[number], positions[number + 1] - positions[number]

        def edit(content: bytearray) -> None:
            struct.pack_into(layout, content, start + offset, value)
            struct.pack_into(">I", content, start + 17, crc_of(content, start, size))

        change(path, edit)

    return damage


def put_in_snapshot(name: str, offset: int, layout: str, value: int) -> Damage:
    """Overwrite a field of the first producer and make the checksum right again."""

    def edit(content: bytearray) -> None:
        struct.pack_into(layout, content, 10 + offset, value)
        struct.pack_into(">I", content, 2, google_crc32c.value(bytes(content[6:])))

    return lambda folder: change(folder / name, edit)


def swap_batches(name: str, number: int) -> Damage:
    """Exchange a batch with the one behind it."""

    def damage(folder: Path) -> None:
        path = folder / name
        first, second, end = [*batch_positions(path), path.stat().st_size][number : number + 3]
        change(path, lambda c: c[:first] + c[second:end] + c[first:second] + c[end:])

    return damage


def swap_entries(name: str, size: int) -> Damage:
    """Exchange the first two entries of an index."""
    return lambda folder: change(folder / name, lambda c: c[size : 2 * size] + c[:size] + c[2 * size :])


def replace_text(name: str, old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        if old not in text:
            raise AssertionError(f"{old!r} is not in {name}")
        (folder / name).write_text(text.replace(old, new))

    return damage


def copy(source: str, target: str) -> Damage:
    return lambda folder: (folder / target).write_bytes((folder / source).read_bytes()) and None
