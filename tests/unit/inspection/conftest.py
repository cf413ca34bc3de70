"""Folders of Apache Kafka, unpacked once: reading shares them, and what a test has damaged is mended behind it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data import kafka

Content = dict[Path, tuple[bytes, int]]


def content_of(folder: Path) -> Content:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def shared_folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Content]]:
    unpacked: dict[str, tuple[Path, Content]] = {}

    def folder(name: str) -> tuple[Path, Content]:
        if name not in unpacked:
            path = kafka.unpack(name, tmp_path_factory.mktemp("kafka"))
            unpacked[name] = path, content_of(path)
        return unpacked[name]

    return folder


@pytest.fixture
def kafka_data(shared_folders: Callable[[str], tuple[Path, Content]]) -> Iterator[Callable[[str], Path]]:
    """As the fixture of all tests, without unpacking anew."""
    used: set[str] = set()

    def folder(name: str) -> Path:
        used.add(name)
        return shared_folders(name)[0]

    yield folder
    for name in used:
        mend(*shared_folders(name))


def mend(folder: Path, content: Content) -> None:
    for path in list(folder.rglob("*")):
        if path.is_file() and path not in content:
            path.unlink()
    for path, (data, modified_ns) in content.items():
        if not path.exists() or path.stat().st_mtime_ns != modified_ns or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=(modified_ns, modified_ns))
    for path in folder.iterdir():
        if path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)
