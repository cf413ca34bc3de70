"""All files of a report: JSON, the page, the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.bench.render import markdown, plots
from oncelog.bench.results import Results, save

PAGE_NAME: Final = "report.md"


def write(results: Results, folder: Path) -> list[Path]:
    written = [save(results, folder)]
    pictures = plots.draw(results, folder) if plots.available() else []
    page = folder / PAGE_NAME
    page.write_text(markdown.report(results, pictures))
    return [*written, page, *(folder / name for _, name in pictures)]
