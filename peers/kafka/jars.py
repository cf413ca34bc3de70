"""The jars of Apache Kafka: fetched once with Maven into a cache outside the tree, and the command lines that run them.

The cache is ``$ONCELOG_PEERS_CACHE``, by default ``~/.cache/oncelog/peers``. A folder is complete when its marker
file is there; concurrent callers wait for one another on a lock file, so that parallel test runs fetch once.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
FETCH_TIMEOUT_S: Final = 600
FETCH_TRIES: Final = 3
FETCH_PAUSE_S: Final = 5.0
_REASON_MAX: Final = 400
HERE: Final = Path(__file__).resolve().parent
_POM: Final = HERE / "pom.xml"
_LOG_SETTINGS: Final = HERE / "log4j2.properties"
_MARKER: Final = ".complete"
QUICK_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For short-lived processes on few cores: compiling less and collecting serially starts faster. Not for benchmarks."""
WRITE_CLASSES: Final = "-XX:ArchiveClassesAtExit="


def cache_dir() -> Path:
    chosen = os.environ.get("ONCELOG_PEERS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "oncelog" / "peers"


@functools.cache
def _java_version() -> str:
    """What the `java` on PATH says of itself; empty when there is none that answers."""
    if shutil.which("java") is None:
        return ""
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False)
    return "" if answer.returncode else answer.stderr + answer.stdout


def java_major_version() -> int | None:
    """The major version of the `java` on PATH, or None when there is none that answers."""
    found = re.search(r'version "(\d+)', _java_version())
    return int(found.group(1)) if found else None


def kafka_available() -> str | None:
    """None when Apache Kafka can be run here, else the reason why not, in words for a person."""
    version = java_major_version()
    if version is None:
        return "Apache Kafka needs Java: there is no working `java` on PATH"
    if version < JAVA_MIN:
        return f"Apache Kafka needs Java {JAVA_MIN} or newer: `java` on PATH is version {version}"
    if shutil.which("mvn") is None and not (_jar_folder() / _MARKER).exists():
        return "Apache Kafka is fetched with Maven: there is no `mvn` on PATH"
    return None


def kafka_missing() -> str | None:
    """As `kafka_available`, but the jars are fetched now, and if that fails it is a reason as well."""
    reason = kafka_available()
    if reason is not None:
        return reason
    try:
        jars()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        # The first lines of Maven's answer tell why; what follows is about Maven.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return " ".join(lines[:2])[:_REASON_MAX]
    return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _jar_folder() -> Path:
    # Named by content, so that a changed pom.xml is fetched anew and an old tree still finds what it asked for.
    return cache_dir() / f"kafka-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]}"


_failures: Final[dict[Path, Exception]] = {}


def fetched(folder: Path, fetch: Callable[[], None], *, tries: int = FETCH_TRIES) -> Path:
    """The folder, filled now if it is not there yet: by one process, and again if that fails for a moment.

    What has failed for good is not tried by this process again.
    """
    if (folder / _MARKER).exists():
        return folder
    with locked(folder.with_suffix(".lock")):
        if not (folder / _MARKER).exists():
            if folder in _failures:
                raise _failures[folder]
            folder.mkdir(parents=True, exist_ok=True)
            _try(folder, fetch, tries)
            (folder / _MARKER).touch()
    return folder


def _try(folder: Path, fetch: Callable[[], None], tries: int) -> None:
    for left in reversed(range(tries)):
        try:
            fetch()
            return
        except (RuntimeError, subprocess.SubprocessError) as error:
            # Who has waited for a registry in vain does not wait again as long.
            if not left or isinstance(error, subprocess.TimeoutExpired):
                _failures[folder] = error
                raise
            time.sleep(FETCH_PAUSE_S)


def jars() -> Path:
    """The folder with the jars, fetched now if it is not there yet."""
    folder = _jar_folder()
    return fetched(folder, lambda: _fetch(folder))


def _fetch(folder: Path) -> None:
    arguments = ["-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    run = subprocess.run(["mvn", *arguments], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"fetching Apache Kafka with Maven failed ({run.returncode}):\n{run.stdout}{run.stderr}")


def class_archive() -> Path:
    """The classes that a broker loads, as this very JVM maps them into memory. `KafkaServer` makes it, once."""
    return jars() / f"classes-{hashlib.sha256(_java_version().encode()).hexdigest()[:12]}.jsa"


def uses_class_archive(options: Sequence[str]) -> bool:
    """Short-lived processes do, but for the one that writes it."""
    return set(QUICK_OPTIONS) <= set(options) and not any(each.startswith(WRITE_CLASSES) for each in options)


def _archive_options(options: Sequence[str]) -> list[str]:
    """An archive that does not fit is not used; Java would say so on stdout."""
    archive = class_archive()
    if not uses_class_archive(options) or not archive.exists() or not archive.stat().st_size:
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


def java_command(
    main: str | Path,
    *arguments: str,
    heap: str = "256m",
    options: Sequence[str] = QUICK_OPTIONS,
    log_level: str = "error",
) -> list[str]:
    """The command line for a class of the jars, or for a single-file Java program given as a path."""
    return [
        "java",
        f"-Xmx{heap}",
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
        f"-Doncelog.peer.loglevel={log_level}",
        *options,
        *_archive_options(options),
        "-cp",
        f"{jars()}/*",
        str(main),
        *arguments,
    ]


def run_java(
    main: str | Path,
    *arguments: str,
    stdin: str | None = None,
    timeout_s: float = 300,
    heap: str = "256m",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a class or program to its end and give what it printed; the caller judges the exit code."""
    return subprocess.run(
        java_command(main, *arguments, heap=heap),
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        check=False,
    )
