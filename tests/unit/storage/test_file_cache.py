"""Descriptors are bounded, and what is in use stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncelog.storage.file_cache import FileCache, FileHandle


def handles(folder: Path, cache: FileCache, count: int) -> list[FileHandle]:
    made = [cache.handle(folder / f"file-{number}") for number in range(count)]
    for number, handle in enumerate(made):
        handle.create()
        handle.path.write_bytes(str(number).encode())
    return made


def content(handle: FileHandle) -> bytes:
    return os.pread(handle.descriptor(), 10, 0)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_any_number_of_files_is_read_through_few_descriptors(tmp_path: Path) -> None:
    cache = FileCache(4)
    files = handles(tmp_path, cache, 50)
    before = open_descriptors()
    for _ in range(2):
        for number, handle in enumerate(files):
            assert content(handle) == str(number).encode()
            assert len(cache) <= 4
    assert open_descriptors() == before + 4
    cache.close_all()
    assert open_descriptors() == before


def test_file_in_use_is_not_closed_for_one_that_is_not(tmp_path: Path) -> None:
    cache = FileCache(3)
    busy, *idle = handles(tmp_path, cache, 10)
    descriptor = busy.descriptor()
    for handle in idle:
        content(handle)
        assert busy.descriptor() == descriptor


def test_open_file_follows_its_rename(tmp_path: Path) -> None:
    cache = FileCache(3)
    (handle,) = handles(tmp_path, cache, 1)
    content(handle)
    handle.rename(tmp_path / "other")
    assert content(handle) == b"0"
    handle.close()
    assert content(handle) == b"0"


def test_missing_file_is_not_made_by_reading(tmp_path: Path) -> None:
    cache = FileCache(3)
    handle = cache.handle(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        handle.descriptor()
    assert not handle.path.exists()
    assert len(cache) == 0


def test_lent_resources_are_closed_when_there_are_too_many() -> None:
    class Resource:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    cache = FileCache(2)
    first, second, third = Resource(), Resource(), Resource()
    for resource in (first, second, first, third):
        cache.lend(resource)
    assert [resource.closed for resource in (first, second, third)] == [0, 1, 0]
    cache.close_all()
    assert [resource.closed for resource in (first, second, third)] == [1, 1, 1]
