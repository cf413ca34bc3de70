"""The pages as a site, as `make docs` builds it: without network, without warnings, nothing loaded from other hosts.

Needs the extra `docs`. Where it is missing the tests are skipped, except in CI: there it is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material")):
        what = "mkdocs-material: pip install 'oncelog[docs]'"
        if os.environ.get("CI"):
            pytest.fail(f"this run needs {what}")
        pytest.skip(what)
    folder = tmp_path_factory.mktemp("site")
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **proxies, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    built = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")} - {Path("404")}
    assert {page.parent / "index" if page.name == "README" else page for page in pages} == built
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0].removesuffix(".html") for entry in index["docs"]}
    assert {str(page) for page in built if page.name != "index"} <= found


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loaded = r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:)?//|<link[^>]*\shref=\"?(https?:)?//"
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page.name


def test_blocks_lists_and_tables_are_rendered(site: Path) -> None:
    """GitHub renders some that the site does not, such as an item of a list right behind an indented paragraph."""
    for source in (ROOT / "docs").rglob("*.md"):
        page = site / source.relative_to(ROOT / "docs").with_suffix(".html")
        text = (page.with_name("index.html") if source.name == "README.md" else page).read_text()
        text = text.partition("<article")[2].partition("</article>")[0]
        blocks = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
        outside, written = blocks.subn("", source.read_text())
        assert len(re.findall(r'<div class="[\w -]*\bhighlight"', text)) >= written, source.name
        assert text.count("<li>") == len(re.findall(r"^ *(?:[-*]|\d+\.) ", outside, re.MULTILINE)), source.name
        assert text.count("<table>") == len(re.findall(r"^\|(?: -+ \|)+$", outside, re.MULTILINE)), source.name


def test_pictures_come_along(site: Path) -> None:
    pictures = [file for file in (ROOT / "docs" / "images").rglob("*") if file.is_file()]
    assert len(pictures) > 3
    for picture in pictures:
        assert (site / picture.relative_to(ROOT / "docs")).read_bytes() == picture.read_bytes()
