"""Where the package runs."""

from __future__ import annotations

import subprocess
import sys


def test_an_import_on_windows_says_where_it_runs() -> None:
    program = "import sys; sys.platform = 'win32'; import oncelog"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: Oncelog runs on Linux and macOS: on Windows install it in WSL\n")
