"""Runs a pipeline program on a Spark that is set up as `oncelog.spark.session()` wants it: behind `oncelog run`.

The program is a plain PySpark program. It gets Java and the Python of its workers from here, the master through
`oncelog.spark.session()`, and finds its brokers in the environment variable ONCELOG_BOOTSTRAP_SERVERS when it looks
there.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from oncelog.spark.java import use_java

BOOTSTRAP_VARIABLE = "ONCELOG_BOOTSTRAP_SERVERS"


def run_program(
    program: Path,
    arguments: Sequence[str] = (),
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    bootstrap_servers: str | None = None,
) -> None:
    """Run it in this process, as `python program arguments` would. Raises JavaMissing."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None:
        os.environ["SPARK_MASTER"] = master
    if bootstrap_servers is not None:
        os.environ[BOOTSTRAP_VARIABLE] = bootstrap_servers
    if settings:
        given = " ".join(f"--conf {_quoted(f'{key}={value}')}" for key, value in settings.items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{given} pyspark-shell"
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    runpy.run_path(str(program), run_name="__main__")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', r"\"") + '"'
