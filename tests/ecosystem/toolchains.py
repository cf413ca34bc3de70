"""Other people's software, each fetched from its own registry into the cache of `peers`, and the command that runs it.

A `Missing` says in words what the machine lacks.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from peers.kafka.jars import cache_dir, fetched, java_major_version

HERE: Final = Path(__file__).parent
FETCH_TIMEOUT_S: Final = 900
JAVA_MIN: Final = 17
KCAT_PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")


class Missing(Exception):
    """A tool chain that this machine does not have."""


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f"there is no `{program}` on PATH")


def _folder(name: str, *sources: Path) -> Path:
    """Where it is kept: named by what was asked for."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    return cache_dir() / f"{name}-{digest}"


def _run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")


@functools.cache
def go_program(name: str) -> list[str]:
    """franz or sarama, from the Go module proxy."""
    require("go")
    source = HERE / "go" / name / "main.go"
    folder = _folder(f"go-{name}", source, HERE / "go" / "go.sum")
    program = folder / name
    fetched(folder, lambda: _run("go", "build", "-o", str(program), f"./{name}", folder=HERE / "go"))
    return [str(program)]


@functools.cache
def quix_command() -> list[str]:
    """Quix Streams, from PyPI, in an environment of its own: it wants an older confluent-kafka than other tests."""
    program, packages = HERE / "python" / "quix.py", HERE / "python" / "requirements.txt"
    folder = _folder("quix", packages)
    python = str(folder / "bin" / "python")

    def fetch() -> None:
        _run(sys.executable, "-m", "venv", "--clear", str(folder), folder=HERE)
        _run(python, "-m", "pip", "install", "-q", "-r", str(packages), folder=HERE)

    fetched(folder, fetch)
    return [python, str(program)]


@functools.cache
def node_program() -> list[str]:
    """kafkajs, from the npm registry."""
    require("node", "npm")
    package, program = HERE / "kafkajs" / "package.json", HERE / "kafkajs" / "pipeline.js"
    folder = _folder("kafkajs", package, program)

    def fetch() -> None:
        for file in (package, program):
            shutil.copy(file, folder)
        _run("npm", "install", "--no-audit", "--no-fund", folder=folder)

    fetched(folder, fetch)
    return ["node", str(folder / program.name)]


@functools.cache
def java_class_path() -> str:
    """Kafka Streams and Kafka Connect, from Maven Central."""
    require("java", "mvn")
    if (java_major_version() or 0) < JAVA_MIN:
        raise Missing(f"`java` on PATH is older than {JAVA_MIN}")
    pom = HERE / "java" / "pom.xml"
    folder = _folder("ecosystem-jars", pom)
    arguments = ("-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}")
    fetched(folder, lambda: _run("mvn", *arguments, folder=HERE))
    return f"{folder}/*"


def java_command(main: str, *arguments: str) -> list[str]:
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", java_class_path(), main, *arguments]


@functools.cache
def kcat() -> tuple[str, dict[str, str]]:
    """The program and its environment: that of the machine, or Debian's packages, unpacked without installing them."""
    installed = shutil.which("kcat")
    if installed is not None:
        return installed, dict(os.environ)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Missing("there is no `kcat` on PATH, and no `apt-get` to fetch it with")
    folder = cache_dir() / "kcat"

    def fetch() -> None:
        _run("apt-get", "download", *KCAT_PACKAGES, folder=folder)
        for package in folder.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(folder), folder=folder)

    fetched(folder, fetch)
    libraries = {str(file.parent) for file in folder.rglob("*.so*")}
    return str(folder / "usr" / "bin" / "kcat"), {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(libraries))}
