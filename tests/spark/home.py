"""A home of Spark whose Python processes start faster."""

from __future__ import annotations

from pathlib import Path

from oncelog.spark.standalone_cluster import spark_home


def make_unzipped_home(folder: Path) -> Path:
    """One whose Python processes import PySpark from where it is installed.

    From the zip in Spark's own home they take a second of CPU time to import it instead of a third, as no bytecode is
    kept of it. Every query starts such a process, and Spark gives it ten seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars"):
        if not (folder / part).exists():
            (folder / part).symlink_to(spark_home() / part)
    return folder
