"""Wheel and sdist in empty environments, on every supported Python that the machine has: `make test-install`.

A Python that the machine does not have is skipped with a word.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")

pytestmark = pytest.mark.skipif(
    not os.environ.get("ONCELOG_INSTALL"), reason="installing on every Python takes minutes: `make test-install`"
)


def run(*command: object, folder: Path, timeout_s: float = 600) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=timeout_s, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def pythons(version: str) -> Iterator[str]:
    """Those that start: a shim of a version manager may name one that is not there."""
    places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for place in filter(None, places):
        if subprocess.run([str(place), "-c", "import venv"], capture_output=True).returncode == 0:
            yield str(place)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel, as `make dist` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment, folder=folder)
    run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "hatchling", folder=folder)
    run(environment / "bin" / "python", "-m", "hatchling", "build", "-d", folder, folder=ROOT)
    return folder


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"oncelog-{oncelog.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "oncelog/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"oncelog", f"oncelog-{oncelog.__version__}.dist-info"}
    assert len(list(built.glob("*.tar.gz"))) == 1


def environment_of(version: str, folder: Path) -> Path:
    """The programs of an empty environment."""
    python = next(pythons(version), None)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    run(python, "-m", "venv", folder / "environment", folder=folder)
    return folder / "environment" / "bin"


def serve_and_look(oncelog_program: Path, *arguments: str, folder: Path) -> None:
    """A broker as a process: it says where it is, answers, and ends in order."""
    serve = [str(oncelog_program), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    broker = subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().removeprefix("oncelog ready on ").strip()
        assert "controller" in run(oncelog_program, "cluster", "info", "-b", address, "-o", "json", folder=folder)
    finally:
        broker.terminate()
        assert broker.wait(180) == 0


@pytest.mark.parametrize(
    ("version", "kind"), [*((version, "*.whl") for version in VERSIONS), (VERSIONS[0], "*.tar.gz")]
)
def test_an_empty_environment_serves_and_explains(built: Path, version: str, kind: str, tmp_path: Path) -> None:
    (package,) = built.glob(kind)
    binaries = environment_of(version, tmp_path)
    run(binaries / "python", "-m", "pip", "install", "--quiet", package, folder=tmp_path)
    assert oncelog.__version__ in run(binaries / "oncelog", "--version", folder=tmp_path)
    serve_and_look(binaries / "oncelog", "serve", "--listen", "127.0.0.1:0", folder=tmp_path)
    assert "holds" in run(binaries / "oncelog", "lab", "fencing", folder=tmp_path)


def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line and not line.startswith("#")
    ]


def test_the_container_file_does_what_it_says(tmp_path: Path) -> None:
    """Where there is no program that builds images, its steps are played in an empty folder.

    What needs a container is left out: the base image, the user, the volume.
    """
    found = instructions()
    known = "FROM COPY RUN FROM COPY RUN USER VOLUME EXPOSE STOPSIGNAL ENTRYPOINT CMD"
    assert " ".join(kind for kind, _ in found) == known
    base = dict(found)["FROM"]
    version = base.rpartition(":")[2].removesuffix("-slim")
    binaries = environment_of(version, tmp_path)
    source = tmp_path / "source"
    tracked = run("git", "ls-files", folder=ROOT).splitlines()
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    install, user = (text for kind, text in found if kind == "RUN")
    words = [
        word.replace("/source", str(source)).replace("/installed", str(tmp_path / "installed"))
        for word in install.split()
    ]
    assert words[0] == "pip"
    run(binaries / "python", "-m", *words, folder=tmp_path)
    copied = next(text for kind, text in found if kind == "COPY" and "--from" in text)
    assert copied == "--from=build /installed /usr/local"
    assert "useradd" in user
    shutil.copytree(tmp_path / "installed", binaries.parent, dirs_exist_ok=True)
    entry = json.loads(dict(found)["ENTRYPOINT"]) + json.loads(dict(found)["CMD"])
    assert entry[0] == "oncelog"
    assert dict(found)["EXPOSE"] == entry[entry.index("--listen") + 1].partition(":")[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    replaced = {"/data/log": str(tmp_path / "data"), "0.0.0.0:9092": f"127.0.0.1:{port}"}
    replaced["localhost:9092"] = f"localhost:{port}"
    serve_and_look(binaries / "oncelog", *(replaced.get(word, word) for word in entry[1:]), folder=tmp_path)
