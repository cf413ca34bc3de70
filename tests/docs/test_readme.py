"""What the README promises: its first commands, its figures; and the extras on the page about installing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from oncelog.testing import broker

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_commands_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = README.partition("## Try it")[2].partition("\n## ")[0].split("```\n")
    commands = [line.partition("  #")[0].strip() for line in blocks[3].splitlines()]
    assert commands[0] == "oncelog lab fencing"
    assert len(commands) == 6
    program = f"{sys.executable} -m oncelog"
    with broker(data_dir=tmp_path / "oncelog-data") as process:
        for command in commands:
            line = re.sub(r"\boncelog (?=[a-z])", f"{program} ", command)
            done = subprocess.run(
                f"export ONCELOG_BOOTSTRAP_SERVERS={process.bootstrap_servers}; {line}",
                shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stdout[-500:], done.stderr[-1000:])


def test_the_figures_are_those_of_the_benchmarks() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| ([\d.]+x) \|$", README.partition("## Speed")[2], re.MULTILINE)
    assert len(rows) == 6
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    for what, ours, theirs, ratio in rows:
        for figure in (ours, theirs, ratio):
            assert figure.split("/")[0].split(" ")[0] in benchmarks, (what, figure)


def test_the_picture_shows_what_is_said_of_it() -> None:
    picture = (ROOT / "docs" / "images" / "demo-timeline.svg").read_text()
    records = sum(map(int, re.findall(r">exactly-once, batch \d+: done, [\d.]+ s, (\d+) records<", picture)))
    end_s = max(map(int, re.findall(r">(\d+) s<", picture)))
    said = re.search(
        r"This one\s+\(`make picture`\)\s+shows\s+([\d,]+) records on two cores,\s+which took (\d+) s:", README
    )
    assert said is not None
    assert abs(records - int(said[1].replace(",", ""))) < 100
    assert int(said[2]) == end_s


def test_the_table_of_other_software_has_a_row_for_each_test_and_no_others() -> None:
    named = set(re.findall(r"`tests/ecosystem`: `(\w+)`", README))
    tests = (ROOT / "tests" / "ecosystem" / "test_ecosystem.py").read_text()
    assert named == set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))


def test_every_extra_for_users_is_on_the_page_about_installing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name for name in project["optional-dependencies"] if not name.endswith("-tests") and name != "dev"}
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == extras
