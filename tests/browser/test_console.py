"""The console in a real browser: it follows what happens, by mouse and by keyboard, on every width, in both schemes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Producer, ProducerFenced
from oncelog.console.visits import Sessions
from oncelog.testing import BrokerProcess
from tests.browser.conftest import TOPIC, fill
from tests.unit.console.conftest import BROKER_SETTINGS, served, serving
from tests.unit.console.test_log_in import secured_broker, settings_of

Tab = Callable[..., Any]
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": f"/topics/{TOPIC}",
    "timeline": f"/topics/{TOPIC}/timeline",
    "timeline-by-time": f"/topics/{TOPIC}/timeline?x=time",
    "messages": f"/topics/{TOPIC}/messages?partition=1&isolation=read_uncommitted",
    "producers": f"/topics/{TOPIC}/producers",
    "transactions": "/transactions",
    "transaction": "/transactions/shop-1",
    "hanging": "/hanging",
    "groups": "/groups",
    "group": "/groups/billing",
    "pipelines": "/pipelines",
    "brokers": "/brokers",
    "broker": "/brokers/1",
    "fence": "/changes/fence?id=slow-importer",
    "reset": f"/changes/reset?group=billing&topic={TOPIC}&to=earliest",
}
TIMELINE = PAGES["timeline"]


def seen(locator: Any) -> Any:
    """An assertion that waits."""
    from playwright.sync_api import expect

    return expect(locator)


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (768, "dark"), (1280, "light"), (1280, "dark")])
def test_no_page_has_an_accessibility_fault_or_is_wider_than_the_screen(
    tab: Tab, slow: Producer, width: int, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = tab(width, scheme)
    folder = os.environ.get("ONCELOG_SCREENSHOTS")
    for name, path in PAGES.items():
        page.goto(path)
        assert page.locator("h1").count() == 1
        is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wide), f"{name} at {width}"
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], f"{name} at {width}, {scheme}"
        if folder is not None:
            page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png")


def test_the_timeline_follows_a_transaction_to_its_end(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto(TIMELINE)
    lane = page.locator("section.lane").nth(1)
    seen(lane.locator(".notice")).to_contain_text("slow-importer holds readers at offset")
    seen(lane.locator("svg .bar.open")).to_have_count(1)
    slow.commit_transaction()
    seen(lane.locator(".notice")).to_have_count(0)
    seen(lane.locator("svg .bar.open")).to_have_count(0)


def test_the_overview_speaks_of_a_transaction_that_others_wait_for(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto("/")
    seen(page.locator(".sentences")).to_contain_text("slow-importer has held orders-1")
    page.get_by_role("link", name="slow-importer has held").click()
    seen(page.locator("h1")).to_have_text(f"Transactions of {TOPIC}")
    page.go_back()
    seen(page.locator("h1")).to_have_text("Overview")


def test_logging_in_and_out(chromium: Any, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with secured_broker(tmp_path) as servers:
        settings = settings_of(servers)
        sessions = Sessions(settings)
        with served(sessions, settings) as served_console:
            context = chromium.new_context(
                base_url=f"http://{served_console.host}", viewport={"width": 320, "height": 700}
            )
            page = context.new_page()
            page.goto("/topics?q=t")
            assert Axe().run(page).response["violations"] == []
            for password in ("wrong", "pencil"):
                page.get_by_label("User").fill("sam")
                page.get_by_label("Password").fill(password)
                page.get_by_role("button", name="Log in").click()
                if password == "wrong":
                    seen(page.get_by_role("alert")).to_contain_text("the password is another one")
            seen(page.locator("h1")).to_have_text("Topics")
            assert page.url.endswith("/topics?q=t")
            seen(page.get_by_role("link", name="tea", exact=True)).to_have_count(1)
            assert Axe().run(page).response["violations"] == []
            page.get_by_role("button", name="Log out").click()
            seen(page.locator("h1")).to_have_text("Log in")
            context.close()
        sessions.close()


def test_two_tabs_see_the_same(tab: Tab, slow: Producer) -> None:
    first, second = tab(), tab(320, "dark")
    for page in (first, second):
        page.goto("/hanging")
        seen(page.get_by_role("link", name="slow-importer")).to_have_count(1)
    slow.abort_transaction()
    for page in (first, second):
        seen(page.get_by_role("link", name="slow-importer")).to_have_count(0)


def test_a_transaction_is_fenced_by_typing_its_name(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto("/hanging")
    page.get_by_role("link", name="End…").click()
    seen(page.locator("h1")).to_have_text("Fence slow-importer")
    page.get_by_label("to confirm").fill("slow-importer")
    page.get_by_role("button", name="Fence it").click()
    seen(page.locator("h1")).to_have_text("Transactional id slow-importer")
    seen(page.locator("#live")).to_contain_text("aborted")
    with pytest.raises(ProducerFenced):
        slow.commit_transaction()


def test_isolation_hides_and_shows_records_and_is_kept_in_the_address(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto(f"/topics/{TOPIC}/messages?partition=1")
    seen(page.locator("tr.open")).to_have_count(0)
    page.get_by_label("read_uncommitted").check()
    page.get_by_role("button", name="Show").click()
    seen(page.locator("tr.open")).to_have_count(1)
    seen(page.locator("tr.aborted").first).to_be_visible()
    page.reload()
    seen(page.get_by_label("read_uncommitted")).to_be_checked()
    seen(page.locator("tr.open")).to_have_count(1)


def test_everything_is_reached_by_keyboard(tab: Tab) -> None:
    page = tab()
    page.goto(TIMELINE)
    page.keyboard.press("Tab")
    seen(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    seen(page.locator("#content")).to_be_focused()
    bars = page.locator("section.lane").first.locator("[data-bar]")
    bars.first.focus()
    page.keyboard.press("ArrowRight")
    seen(bars.nth(1)).to_be_focused()
    page.keyboard.press("End")
    seen(bars.last).to_be_focused()
    page.keyboard.press("Enter")
    seen(page.locator("h1")).to_contain_text("Transactional id shop-")
    page.goto("/topics")
    page.keyboard.press("/")
    seen(page.locator("[data-search]")).to_be_focused()


def test_an_open_table_and_the_focus_survive_an_update(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto(TIMELINE)
    lane = page.locator("section.lane").nth(1)
    lane.locator("summary").click()
    rows = lane.locator("tbody tr")
    before = rows.count()
    slow.send(TOPIC, b"another", partition=0)
    slow.commit_transaction()
    seen(lane.locator(".badge.open")).to_have_count(0)
    assert rows.count() == before
    seen(lane.locator("table")).to_be_visible()
    seen(lane.locator("summary")).to_be_focused()


def test_pages_work_without_javascript(chromium: Any, address: str, slow: Producer) -> None:
    context = chromium.new_context(java_script_enabled=False, base_url=address)
    page = context.new_page()
    page.goto(TIMELINE)
    seen(page.locator("section.lane").nth(1).locator("svg .bar.open")).to_have_count(1)
    context.close()


def test_a_broker_that_is_killed_and_comes_back(chromium: Any, tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    try:
        process.start()
        fill(process.bootstrap_servers)
        with serving(process.bootstrap_servers) as served:
            context = chromium.new_context(base_url=f"http://{served.host}")
            first, late = context.new_page(), context.new_page()
            first.goto(TIMELINE)
            bars = first.locator("section.lane").first.locator("[data-bar]")
            seen(first.locator("#live-state")).to_have_text("live")
            shown = bars.count()
            process.kill()
            seen(first.locator("#status")).to_contain_text("has not answered for", timeout=30_000)
            seen(bars).to_have_count(shown)
            late.goto(TIMELINE)
            seen(late.locator("h1")).to_have_text("The cluster does not answer")
            process.start()
            for page in (first, late):
                seen(page.locator("h1")).to_have_text(f"Transactions of {TOPIC}", timeout=60_000)
                seen(page.locator("#live-state")).to_have_text("live", timeout=60_000)
            seen(bars).to_have_count(shown)
            context.close()
    finally:
        process.stop()
