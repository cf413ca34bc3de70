"""The second try of failed tests in CI: for whom there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import NEVER_AGAIN, NOTE, main, refusal

RED_ONCE = """
from pathlib import Path
def test_red_once():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
def test_green():
    pass
"""


def test_few_failures_have_a_second_try() -> None:
    assert refusal(1, ["tests/unit/a.py::test"]) == ""
    assert refusal(1, [f"tests/unit/a.py::test_{n}" for n in range(4)]) == "4 tests failed"


@pytest.mark.parametrize("exit_code", [0, 2, 3, 4, 5, -1])
def test_a_run_that_broke_off_has_none(exit_code: int) -> None:
    assert refusal(exit_code, ["tests/unit/a.py::test"]) == "the run broke off"
    assert refusal(1, []) == "the run broke off"


@pytest.mark.parametrize("place", NEVER_AGAIN)
def test_lost_records_have_none(place: str) -> None:
    assert (Path(__file__).parents[1] / place).exists(), "it was moved"
    name = f"{place}test_a.py::test" if place.endswith("/") else f"{place}::test"
    assert refusal(1, ["tests/unit/a.py::test", name]) == f"{name} failed, which has no second try"


def test_every_simulation_is_among_them() -> None:
    found = {f"tests/{folder.name}/" for folder in Path(__file__).parent.glob("*simulation")}
    assert len(found) > 1
    assert found <= set(NEVER_AGAIN)


def test_without_a_note_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with pytest.raises(SystemExit, match="no second try: the run broke off"):
        main(tmp_path / "note")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_fails_once_is_named(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_once.py").write_text(RED_ONCE)
    (tmp_path / "conftest.py").write_text("from tests.second_try import take_notes as pytest_configure\n")
    note = tmp_path / "note"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {NOTE: str(note), "PYTHONPATH": str(Path(__file__).parents[1])}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    first = run("pytest", "-p", "no:cacheprovider", "--numprocesses", processes, "--rootdir", str(tmp_path))
    assert first.returncode == 1, first.stdout
    assert json.loads(note.read_text()) == {"exit": 1, "failed": ["test_once.py::test_red_once"]}
    second = run("tests.second_try", str(note))
    assert second.returncode == 0, second.stdout
    assert "1 passed" in second.stdout
    assert "FAILED ONCE, THEN PASSED ALONE, to be mended: test_once.py::test_red_once" in second.stdout
