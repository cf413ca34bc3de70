"""Finding the Java that Spark needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def fake_java(folder: Path, version: str) -> Path:
    program = "import sys; sys.modules['pyspark'] = None; import oncelog.spark.java as j; sys.exit(j.main(['--check']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Java" in done.stdout
