"""What the pages point at is there: other pages, files, modules and what is in them, settings."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.topic_config import TOPIC_CONFIG

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "peers" / "README.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TOP_FOLDERS = ("src", "tests", "docs", "examples", "peers")
LAYERS = tuple(folder.name for folder in (ROOT / "src" / "oncelog").iterdir() if folder.is_dir())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text()):
        if not target.startswith("http"):
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor[1:] in anchors(linked), f"{target}{anchor}"


def anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def mentioned(page: Path) -> list[str]:
    """Files and modules in code spans: `tests/crash/test_kill.py`, `storage/log.append`, `oncelog.client.producer`."""
    spans = re.findall(r"`([\w./-]+)`", page.read_text())
    return [span for span in spans if span.startswith(tuple(f"{name}/" for name in (*TOP_FOLDERS, *LAYERS)))]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    for place in mentioned(page):
        assert (ROOT / place).exists() or (page.parent / place).exists() or is_in_package(place), place


def is_in_package(place: str) -> bool:
    """`storage/log`, `storage/log.py`, or `storage/log.append`: a function of it, or of one of its classes."""
    if (ROOT / "src" / "oncelog" / place).exists():
        return True
    path, _, attribute = place.partition(".")
    name = f"oncelog.{path.replace('/', '.')}"
    if importlib.util.find_spec(name) is None:
        return False
    module = importlib.import_module(name)
    return not attribute or any(hasattr(owner, attribute) for owner in (module, *vars(module).values()))


def test_a_place_that_is_not_there_would_be_noticed() -> None:
    assert is_in_package("storage/log.append")
    assert not is_in_package("storage/log.no_such_call")
    assert not is_in_package("storage/no_such_module")
    assert len(mentioned(ROOT / "docs" / "architecture.md")) > 20


def settings_in(page: Path) -> list[str]:
    """The first column of tables that are about settings of brokers and topics."""
    tables = re.findall(r"^\| setting \|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_settings_that_operators_read_about_exist() -> None:
    named = settings_in(ROOT / "docs" / "operations.md")
    assert len(named) > 15
    assert [name for name in named if name not in BROKER_CONFIG and name not in TOPIC_CONFIG] == []


def test_operators_read_about_every_setting_of_our_own() -> None:
    own = {key.name for key in BROKER_CONFIG if key.name.startswith("oncelog.")}
    assert own - set(settings_in(ROOT / "docs" / "operations.md")) == set()
