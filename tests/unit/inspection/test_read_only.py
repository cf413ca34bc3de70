"""Inspection changes nothing: no byte, no file, no lock, whatever state a folder is in."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.main import cli
from tests.unit.inspection import damages


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["tv2", "tv2-killed"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["dump"],
        ["dump", "--format", "kafka"],
        ["dump", "--output", "json"],
        ["verify"],
        ["find", "--offset", "40"],
        ["find", "--time", "2020-01-01"],
        ["find", "--key", "committed-0-3"],
        ["timeline"],
    ],
)
def test_a_folder_is_the_same_afterwards(name: str, arguments: list[str], kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data(name)
    damages.cut(damages.LAST_LOG, 5)(folder)
    damages.flip("txn-0/00000000000000000091.snapshot", 30)(folder)
    (folder / "txn-0" / "00000000000000000200.log.swap").write_bytes(b"")
    before = state_of(folder)
    result = CliRunner().invoke(cli, ["log", arguments[0], str(folder), *arguments[1:]])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert state_of(folder) == before
    assert not (folder / ".lock").exists()


def test_a_folder_without_write_permission_can_be_read(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    for path in folder.rglob("*"):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        assert CliRunner().invoke(cli, ["log", "verify", str(folder)]).exit_code == 0
    finally:
        for path in folder.rglob("*"):
            path.chmod(stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if path.is_dir() else 0))
