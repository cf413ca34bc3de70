"""What the pytest plugin does before a test asks for a broker, in runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = """
import sys
from pathlib import Path

def test_first():
    launched = [p for p in Path("/proc").glob("[0-9]*/cmdline") if is_launcher(p)]
    print("launchers:", len(launched), "imported:", "oncelog.testing.broker" in sys.modules)

def is_launcher(path):
    try:
        words = path.read_bytes()
        parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == __import__("os").getpid() and b"forking.py" in words
"""
WITH_BROKER = """
def test_second(oncelog_topic, oncelog_broker):
    assert oncelog_broker.running
"""
FRESH = """
def test_second(fresh_oncelog_broker):
    assert fresh_oncelog_broker.running
"""


def run(folder: Path, text: str, *arguments: str) -> str:
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *arguments, str(folder)], capture_output=True, text=True, timeout=400, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="there is no launcher")
@pytest.mark.parametrize("second", [WITH_BROKER, FRESH])
def test_imports_of_a_broker_overlap_with_the_tests_before(tmp_path: Path, second: str) -> None:
    output = run(tmp_path, PLAIN + second)
    assert "launchers: 1 " in output
    assert "2 passed" in output


@pytest.mark.parametrize(("text", "arguments"), [(PLAIN, ()), (PLAIN + WITH_BROKER, ("-k", "first"))])
def test_a_run_without_a_broker_does_not_pay_for_one(tmp_path: Path, text: str, arguments: tuple[str, ...]) -> None:
    assert "launchers: 0 imported: False" in run(tmp_path, text, *arguments)


def test_collecting_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n\ndef pytest_unconfigure():\n    print('imported:', 'oncelog.testing.launcher' in sys.modules)\n"
    )
    assert "imported: False" in run(tmp_path, PLAIN + WITH_BROKER, "--collect-only")
