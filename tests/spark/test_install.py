"""What `pip install 'oncelog[spark]'` brings is enough, without what the tests need besides."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sysconfig
import time
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.spark.java import use_java
from tests.spark import timers
from tests.spark.kafka import Kafka

ROOT = Path(__file__).parents[2]


def requirements(extra: str) -> Iterator[str]:
    """Names of the packages that an extra asks for, extras of our own resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"][extra]]:
        own = re.match(r"oncelog\[(\w+)\]", requirement)
        if own:
            yield from requirements(own[1])
        else:
            yield re.split(r"[^\w.-]", requirement)[0]


def closure(names: Iterator[str]) -> dict[str, importlib.metadata.Distribution]:
    """The installed distributions that those need, with theirs, as pip would bring them."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = list(names)
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        needed = [text for text in found[name].requires or [] if "extra ==" not in text]
        wanted += [re.split(r"[^\w.-]", text)[0] for text in needed if _is_for_here(text)]
    return found


def _is_for_here(requirement: str) -> bool:
    """Requirements for other platforms and older Pythons are not installed here."""
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


@pytest.fixture
def clean_python(tmp_path: Path) -> Path:
    """An interpreter that sees Oncelog and what its extra `spark` asks for, and nothing else."""
    folder = tmp_path / "clean"
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for distribution in closure(requirements("spark")).values():
        for file in distribution.files or []:
            place = packages / file
            if ".." not in file.parts and "__pycache__" not in file.parts:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(Path(str(distribution.locate_file(file))))
    (packages / "oncelog").symlink_to(ROOT / "src" / "oncelog")
    return folder / "bin" / "python"


@pytest.mark.spark
@pytest.mark.timeout(2000)
def test_a_query_with_timers_runs_from_a_clean_install(
    kafka: Kafka, name: Callable[[str], str], checkpoint: str, clean_python: Path
) -> None:
    source, target = kafka.create(name("in")), kafka.create(name("out"))
    now_ms = int(time.time() * 1000)  # older records might be deleted by retention before they are read
    for time_ms in (now_ms, now_ms + 10_000):
        kafka.send(source, [{"key": b"k", "timestamp": time_ms}] * 4)
    program = [str(clean_python), timers.__file__, kafka.servers, source, target, checkpoint]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK"))}
    environment["JAVA_HOME"] = str(use_java().home)
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    # The second batch moves the time past the timer that the first has set, and nothing past its own.
    assert kafka.values(target) == [b"8"]
    # Snapshots of the state are kept, and no checksum files.
    state = [file.suffix for file in Path(checkpoint).rglob("*") if file.is_file()]
    assert ".zip" in state
    assert ".crc" not in state
