"""A missing browser is a failure where its tests must run; what they make is what the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser import conftest
from tests.browser.test_console import PICTURE_WIDTHS, PICTURES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_documentation_shows_every_page_by_the_names_that_the_tests_give_their_pictures() -> None:
    text = (DOCS / "console.md").read_text()
    shown = set(re.findall(r"\(images/console/([\w-]+)\.png\)", text))
    made = {f"{name}-{width}" for name in PICTURES for width in PICTURE_WIDTHS}
    assert shown == made
    assert {file.stem for file in (DOCS / "images" / "console").iterdir()} == made


def test_a_missing_browser_is_a_failure_in_ci_and_skipped_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "IS_WHOLE", False)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        conftest.missing("a Chromium")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="a Chromium is missing"):
        conftest.missing("a Chromium")
    monkeypatch.setattr(conftest, "IS_WHOLE", True)
    with pytest.raises(pytest.fail.Exception):
        conftest.missing("a Chromium")
