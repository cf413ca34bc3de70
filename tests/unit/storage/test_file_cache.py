"""Descriptors are bounded, and what is in use stays open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oncelog.storage.file_cache import FileCache, FileHandle
from tests.descriptors import open_descriptors_of_files
from tests.unit.storage.no_descriptors import no_descriptor_left


def handles(folder: Path, cache: FileCache, count: int) -> list[FileHandle]:
    made = [cache.handle(folder / f"file-{number}") for number in range(count)]
    for number, handle in enumerate(made):
        handle.create()
        handle.path.write_bytes(str(number).encode())
    return made


def content(handle: FileHandle) -> bytes:
    return os.pread(handle.descriptor(), 10, 0)


def test_any_number_of_files_is_read_through_few_descriptors(tmp_path: Path) -> None:
    cache = FileCache(4)
    files = handles(tmp_path, cache, 50)
    before = open_descriptors_of_files()
    for _ in range(2):
        for number, handle in enumerate(files):
            assert content(handle) == str(number).encode()
            assert len(cache) <= 4
    assert open_descriptors_of_files() == before + 4
    cache.close_all()
    assert open_descriptors_of_files() == before


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


def test_missing_file_is_made_on_demand(tmp_path: Path) -> None:
    handle = FileCache(3).handle(tmp_path / "new")
    os.pwrite(handle.descriptor(creates=True), b"0", 0)
    handle.close()
    os.pwrite(handle.descriptor(creates=True), b"1", 1)
    assert handle.path.read_bytes() == b"01"
    handle.close()


def test_cache_gives_up_files_of_its_own_when_the_process_has_no_descriptor_left(tmp_path: Path) -> None:
    cache = FileCache(100)
    handles = [cache.handle(tmp_path / str(number)) for number in range(10)]
    for handle in handles[:5]:
        handle.descriptor(creates=True)
    with no_descriptor_left():
        for number, handle in enumerate(handles):
            os.pwrite(handle.descriptor(creates=True), b"%d" % number, 0)
    assert len(cache) == 5
    assert [handle.path.read_bytes() for handle in handles] == [b"%d" % number for number in range(10)]
    cache.close_all()


def test_without_any_file_of_its_own_the_cache_says_that_no_descriptor_is_left(tmp_path: Path) -> None:
    cache = FileCache(100)
    with no_descriptor_left(), pytest.raises(OSError) as caught:
        cache.handle(tmp_path / "file").descriptor(creates=True)
    assert caught.value.errno == errno.EMFILE
