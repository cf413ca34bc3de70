"""docs/connectors.md: the walk-through runs as it stands there, and the tables of settings are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncelog.connect import settings
from oncelog.core.config import ConfigTable, format_value
from tests.docs.console import Shell, commands_in, normalised

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"


def test_the_walk_through_prints_what_the_page_says(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell({"ONCELOG_BOOTSTRAP_SERVERS": servers})
    try:
        for command in commands_in(PAGE):
            assert normalised(shell.run(command.line)) == normalised(command.expected), command.line
    finally:
        shell.close()


def test_the_python_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/connectors.md", "exec"), {})


def table_text(table: ConfigTable) -> str:
    rows = [(key.name, "" if key.default is None else format_value(key.default), key.doc) for key in table]
    return "\n".join(f"| `{name}` | {default} | {doc} |" for name, default, doc in rows if name != "name")


@pytest.mark.parametrize("name", [name for name in vars(settings) if name.endswith("_TABLE")])
def test_the_tables_of_settings_are_those_of_the_code(name: str) -> None:
    assert table_text(getattr(settings, name)) in PAGE.read_text()
