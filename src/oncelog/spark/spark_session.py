"""A Spark session with the settings the pipeline wants, and the checks on a session somebody else built.

Every setting stands in SETTINGS with its reason; `explain()` prints them. Settings the caller gives win, except those
that would break exactly-once: `refuse_unsafe` names them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.spark.java import use_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


class Setting(NamedTuple):
    key: str
    value: str
    reason: str


FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOCAL_FILES = "org.apache.hadoop.fs.LocalFileSystem"
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "spark.stage.maxConsecutiveAttempts",
        "1",
        "a stage retry runs finished tasks again without telling them; failing the job lets the sink take a new epoch",
    ),
    Setting(
        "spark.stage.maxAttempts",
        "1",
        "the same for retries that do not count as consecutive: those after an executor was decommissioned",
    ),
    Setting("spark.speculation", "false", "two copies of one task would write with the same sequence numbers"),
    Setting(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "state larger than the heap, bundled with Spark",
    ),
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "a micro-batch uploads its changes, not whole snapshots of the state",
    ),
    Setting(FILE_MANAGER, LOCAL_FILE_MANAGER, "the default forks a process per checkpoint file on local disks"),
    Setting(
        "spark.hadoop.fs.file.impl",
        LOCAL_FILES,
        "with that manager, Hive's file system, which Spark takes otherwise, keeps the state of an attempt that failed",
    ),
    Setting("spark.python.unix.domain.socket.enabled", "true", "30 to 55 ms less per micro-batch than TCP on loopback"),
    Setting("spark.sql.execution.arrow.maxRecordsPerBatch", "50000", "large Arrow batches: few calls per row"),
    Setting(
        "spark.sql.execution.arrow.maxBytesPerBatch", "8388608", "bounds those batches when rows are large (8 MiB)"
    ),
    Setting(
        "spark.sql.shuffle.partitions", "8", "streaming state is split once and for all; 200 tasks a batch are too many"
    ),
    Setting("spark.sql.session.timeZone", "UTC", "record timestamps mean the same on every machine"),
)


STAGE_ATTEMPTS = {"spark.stage.maxConsecutiveAttempts": "4", "spark.stage.maxAttempts": "2147483647"}
"""How often Spark runs a stage unless told otherwise. Both must be 1: what a decommissioned executor lost counts for
the second alone (`spark.stage.ignoreDecommissionFetchFailure`)."""
DEFAULT_MASTER = "local[*,4]"


class UnsafeSetting(ValueError):
    """A Spark setting under which the sink could write a row twice or not at all."""


def session(
    app_name: str = "oncelog", *, master: str | None = None, config: dict[str, str] | None = None
) -> SparkSession:
    """A session ready for `oncelog` sources and the exactly-once sink.

    `master` defaults to what spark-submit or SPARK_MASTER says, else to all cores of this machine with task retries,
    as a cluster has them. `config` adds settings or replaces those of SETTINGS. A local master listens on loopback
    alone, unless SPARK_LOCAL_IP or spark.driver.host say otherwise.
    """
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    submitted = SparkConf()
    chosen = master or submitted.get("spark.master") or os.environ.get("SPARK_MASTER", DEFAULT_MASTER)
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for key, value in {**_defaults(submitted), **_loopback(submitted, chosen), **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    refuse_unsafe(spark)
    _write_no_checksum_files(spark)
    register(spark)
    return spark


def _defaults(submitted: SparkConf) -> dict[str, str]:
    """Settings given to spark-submit stay as they are."""
    return {setting.key: setting.value for setting in SETTINGS if submitted.get(setting.key) is None}


def _loopback(submitted: SparkConf, master: str) -> dict[str, str]:
    """A driver that talks to nobody but itself need not be reachable from elsewhere."""
    if not master.startswith("local") or "SPARK_LOCAL_IP" in os.environ or submitted.get("spark.driver.host"):
        return {}
    return {"spark.driver.host": "127.0.0.1"}


def _write_no_checksum_files(spark: SparkSession) -> None:
    """Beside local checkpoints: half the file operations of a micro-batch.

    Set on the file system object of this JVM, because no setting does it: `fs.file.impl` could name one without
    checksums, but snapshots of RocksDB are copied with a LocalFileSystem, and would fail on any other.
    """
    context = spark.sparkContext
    jvm: Any = context._jvm
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration()).setWriteChecksum(False)


def register(spark: SparkSession) -> None:
    """Make `format("oncelog")` known to a session that `session()` did not build."""
    from oncelog.spark.source import OncelogDataSource

    spark.dataSource.register(OncelogDataSource)


def refuse_unsafe(spark: SparkSession) -> None:
    """Raise UnsafeSetting, naming the setting, when exactly-once writing would not hold on this session."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsafeSetting(
            "this is a Spark Connect session: its server runs the batches, where the sink cannot see them. Use a "
            "classic session (oncelog.spark.session(), or SparkSession.builder.master(...))"
        )
    conf = spark.sparkContext.getConf()
    if (conf.get("spark.speculation") or "false").lower() == "true":
        raise UnsafeSetting(
            "spark.speculation is on: two copies of a task would write the same rows with the same sequence numbers. "
            "Set spark.speculation=false, or use oncelog.spark.session()."
        )
    for setting, default in STAGE_ATTEMPTS.items():
        attempts = conf.get(setting) or default
        if attempts != "1":
            raise UnsafeSetting(
                f"{setting} is {attempts}: a retried stage would run finished tasks again and write their rows twice. "
                f"Set {' and '.join(STAGE_ATTEMPTS)} to 1 when the session is built (the sink itself runs a failed "
                "batch again), or use oncelog.spark.session()."
            )


def refuse_kept_files(spark: SparkSession, checkpoint: str) -> None:
    """Raise UnsafeSetting where checkpoint files that exist would not be replaced.

    Most file systems do not rename over a file that exists, and LOCAL_FILE_MANAGER takes that for success. When a batch
    is run again, the state of the attempt that failed would stay, and part from the output.
    """
    if spark.conf.get(FILE_MANAGER, None) != LOCAL_FILE_MANAGER:
        return
    jvm: Any = spark.sparkContext._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    files = jvm.org.apache.hadoop.fs.Path(checkpoint).getFileSystem(configuration).getClass().getName()
    if files != LOCAL_FILES:
        raise UnsafeSetting(
            f"{FILE_MANAGER} is {LOCAL_FILE_MANAGER.rpartition('.')[2]}, and the checkpoint {checkpoint} is kept by "
            f"{files}: when a batch with state is run again, the state of the attempt that failed would stay. Build "
            "the session with another file manager: config={"
            f"'{FILE_MANAGER}': '{LOCAL_FILE_MANAGER.replace('FileSystemBased', 'FileContextBased')}'}}, or the one "
            f"that is made for your storage. For local files spark.hadoop.fs.file.impl={LOCAL_FILES} does as well"
        )


def explain() -> str:
    """The settings of `session()`, one per line, each with its reason."""
    return "\n".join(f"{setting.key}={setting.value}\n    {setting.reason}" for setting in SETTINGS)
