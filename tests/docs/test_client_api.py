"""The API page is what the docstrings say."""

from __future__ import annotations

from pathlib import Path

from oncelog.client import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-api.md"


def test_the_page_is_made_from_the_docstrings_of_today() -> None:
    assert PAGE.read_text() == reference.page(), "run: python -m oncelog.client.reference docs/client-api.md"


def test_every_public_name_has_an_entry() -> None:
    import oncelog.client.admin

    entries = {line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")}
    assert entries == {*oncelog.client.__all__, *oncelog.client.admin.__all__, "oncelog.client.admin"}
