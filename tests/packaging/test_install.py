"""The wheel in an empty environment, on every supported Python that the machine has: `make test-install`.

A Python that the machine does not have is skipped with a word.
"""

from __future__ import annotations

import os
import shutil
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


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_environment_serves_and_explains(built: Path, version: str, tmp_path: Path) -> None:
    python = next(pythons(version), None)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    (wheel,) = built.glob("*.whl")
    run(python, "-m", "venv", tmp_path / "environment", folder=tmp_path)
    binaries = tmp_path / "environment" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", wheel, folder=tmp_path)
    assert oncelog.__version__ in run(binaries / "oncelog", "--version", folder=tmp_path)
    serve = [str(binaries / "oncelog"), "serve", "--listen", "127.0.0.1:0"]
    broker = subprocess.Popen(serve, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().removeprefix("oncelog ready on ").strip()
        assert "controller" in run(
            binaries / "oncelog", "cluster", "info", "-b", address, "-o", "json", folder=tmp_path
        )
    finally:
        broker.terminate()
        assert broker.wait(60) == 0
    assert "holds" in run(binaries / "oncelog", "lab", "fencing", folder=tmp_path)
