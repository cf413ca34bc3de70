"""A page of the documentation with the results of a run in its middle; what stands around them is written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.bench.render import markdown, plots
from oncelog.bench.results import Results

BEGIN: Final = "<!-- results: made by `python -m peers.compare --render --page`, not by hand -->"
END: Final = "<!-- end of results -->"


class PageError(Exception):
    """The page has no place for results."""


def update(page: Path, results: Results) -> None:
    """Replaces what is between the marks; pictures go into a folder named like the page."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PageError(f"{page} has no lines {BEGIN!r} and {END!r}")
    folder = page.with_suffix("")
    drawn = plots.draw(results, folder) if plots.available() else []
    pictures = [(title, f"{folder.name}/{name}") for title, name in drawn]
    page.write_text(f"{before}{BEGIN}\n\n{markdown.body(results, pictures, level=3)}\n{END}{after}")
