"""docs/tutorial.md, executed, and the site that it is part of."""

from __future__ import annotations

import re
from pathlib import Path

from oncelog.testing import broker
from tests.docs.console import Shell, commands_in, normalised

ROOT = Path(__file__).resolve().parents[2]


def test_the_tutorial_is_true(tmp_path: Path) -> None:
    commands = commands_in(ROOT / "docs" / "tutorial.md")
    assert len(commands) >= 8
    with broker(data_dir=tmp_path / "oncelog-data") as process:
        shell = Shell({"ONCELOG_BOOTSTRAP_SERVERS": process.bootstrap_servers})
        try:
            shell.run(f"cd {tmp_path}")
            for command in commands:
                assert normalised(shell.run(command.line)) == normalised(command.expected), command.line
        finally:
            shell.close()


def test_every_page_has_its_place_on_the_site_and_on_the_first_page() -> None:
    """Notes on single decisions are reached from their list."""
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages -= {page for page in pages if page.startswith("decisions/") and page != "decisions/README.md"}
    menu = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(pages)
    first = set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert first == pages - {"index.md"}
