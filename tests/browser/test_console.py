"""The console in a real browser: it follows what happens, by mouse and by keyboard, on every width, in both schemes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import ClientConfig, Producer, ProducerFenced, TopicPartition
from oncelog.console.settings import ConsoleSettings
from oncelog.console.visits import Sessions
from oncelog.testing import BrokerProcess
from tests.browser.conftest import IS_WHOLE, SLOW_TIMEOUT_MS, TOPIC, fill, transactional
from tests.unit.cli.test_transactions import leave_hanging
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
    "keys": f"/topics/{TOPIC}/messages?view=keys",
    "message": f"/topics/{TOPIC}/messages/1/0",
    "producers": f"/topics/{TOPIC}/producers",
    "transactions": "/transactions",
    "transaction": "/transactions/shop-1",
    "hanging": "/hanging",
    "groups": "/groups",
    "group": "/groups/billing",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/sink-of-orders",
    "brokers": "/brokers",
    "broker": "/brokers/1",
    "fence": "/changes/fence?id=slow-importer",
    "reset": f"/changes/reset?group=billing&topic={TOPIC}&to=earliest",
}
ABSENT = {"problem": "/topics/no-such-topic", "no-such-page": "/nowhere"}
"""Pages that say what is not there."""
SCREENS = [(320, "light"), (320, "dark"), (768, "dark"), (1280, "light"), (1280, "dark")]
PICTURES = {*PAGES, "hung", "abort", "problem", "log-in"}
"""Pages that docs/console.md shows, ..."""
PICTURE_WIDTHS = (320, 1280)
"""... on these screens, in the light scheme."""
PICTURE_HEIGHT_MAX = 2_200
SHORT_FORM_PAGES = ("overview", "timeline", "messages", "message", "transaction", "hanging", "group", "fence")
TIMELINE = PAGES["timeline"]


def seen(locator: Any) -> Any:
    """An assertion that waits."""
    from playwright.sync_api import expect

    return expect(locator)


def examine(page: Any, name: str, scheme: str = "light") -> None:
    """No fault that axe finds, nothing wider than the screen, and a picture for the documentation if one is wanted."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_load_state()  # a click does not wait for styles
    width = page.viewport_size["width"]
    assert page.locator("h1").count() == 1
    is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(is_wide), f"{name} at {width}"
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], f"{name} at {width}, {scheme}"
    folder = os.environ.get("ONCELOG_SCREENSHOTS")
    if folder is not None and name in PICTURES and scheme == "light" and width in PICTURE_WIDTHS:
        height = min(page.evaluate("document.documentElement.scrollHeight"), PICTURE_HEIGHT_MAX)
        part = {"x": 0, "y": 0, "width": width, "height": height}
        page.screenshot(path=Path(folder) / f"{name}-{width}.png", full_page=True, clip=part)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_no_page_has_an_accessibility_fault_or_is_wider_than_the_screen(
    tab: Tab, slow: Producer, width: int, scheme: str
) -> None:
    page = tab(width, scheme)
    for name, path in PAGES.items():
        if IS_WHOLE or name in SHORT_FORM_PAGES:
            page.goto(path)
            examine(page, name, scheme)


def test_the_page_of_what_is_not_there_has_no_accessibility_fault(chromium: Any, address: str) -> None:
    """Not in a tab of the fixture: a browser notes each 404 as an error."""
    for width, scheme in SCREENS:
        context = chromium.new_context(base_url=address, viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        for name, path in ABSENT.items():
            answer = page.goto(path)
            assert answer.status == 404
            examine(page, name, scheme)
        context.close()


def test_pages_of_a_hanging_transaction_up_to_its_abort(chromium: Any, tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    try:
        process.start()
        leave_hanging(process, TopicPartition("hung", 0))
        process.start()
        with serving(process.bootstrap_servers, tmp_path / "audit.jsonl", hanging_after_ms=0) as found:
            for width, scheme in SCREENS:
                context = chromium.new_context(
                    base_url=f"http://{found.host}", viewport={"width": width, "height": 800}, color_scheme=scheme
                )
                page = context.new_page()
                page.goto("/hanging")
                seen(page.locator("article.card")).to_contain_text("no coordinator will end it")
                examine(page, "hung", scheme)
                page.goto("/topics/hung/timeline")
                seen(page.locator(".notice.urgent")).to_contain_text("hanging")
                examine(page, "hung-timeline", scheme)
                page.goto("/hanging")
                page.get_by_role("link", name="Abort it on this partition").click()
                seen(page.locator("h1")).to_have_text("Abort on hung:0")
                examine(page, "abort", scheme)
                if (width, scheme) == SCREENS[-1]:
                    page.get_by_label("to confirm").fill("hung:0")
                    page.get_by_role("button", name="Abort it here").click()
                    seen(page.locator("#live")).to_contain_text("No transaction hangs.")
                context.close()
    finally:
        process.stop()


def test_the_timeline_follows_a_transaction_to_its_end(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto(TIMELINE)
    lane = page.locator("section.lane").nth(1)
    seen(lane.locator(".notice")).to_contain_text("slow-importer holds readers at offset")
    seen(lane.locator("svg .bar.open")).to_have_count(1)
    slow.commit_transaction()
    seen(lane.locator(".notice")).to_have_count(0)
    seen(lane.locator("svg .bar.open")).to_have_count(0)


CHANGES = """lane => {
    window.seenOpen = [];
    const look = () => {
        const count = document.querySelectorAll("section.lane")[lane].querySelectorAll("svg .bar.open").length;
        if (window.seenOpen.at(-1)?.[1] !== count) window.seenOpen.push([Date.now(), count]);
    };
    look();
    new MutationObserver(look).observe(document.getElementById("live"), { childList: true, subtree: true });
}"""
"""Notes when the number of open bars in a lane changes: waiting for it from outside would measure its own pauses."""
FOLLOWS_WITHIN_MS = 1_500
SERIES = 4


def test_the_timeline_follows_within_about_a_second(chromium: Any, world: str) -> None:
    """With the default interval of polls, a transaction that is opened, committed, opened, aborted.

    A machine that does other things may be late: one series of several has to be in time from end to end.
    """
    producer = transactional(world, "followed", SLOW_TIMEOUT_MS)
    default_ms = ConsoleSettings(ClientConfig(bootstrap_servers=world)).poll_interval_ms
    series = []
    with serving(world, poll_interval_ms=default_ms) as found:
        context = chromium.new_context(base_url=f"http://{found.host}")
        page = context.new_page()
        page.goto(TIMELINE)
        seen(page.locator("#live-state")).to_have_text("live")
        lane = page.locator("section.lane").nth(1)
        page.evaluate(CHANGES, 1)
        for _ in range(SERIES):
            late_ms = []
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send(TOPIC, b"followed", partition=1)
                producer.flush()
                late_ms.append(shown_after_ms(page, lane, 1))
                end()
                late_ms.append(shown_after_ms(page, lane, 0))
            series.append(late_ms)
            if max(late_ms) < FOLLOWS_WITHIN_MS:
                break
        seen(lane.locator("svg .bar.aborted").last).to_be_attached()
        context.close()
    producer.close()
    assert max(series[-1]) < FOLLOWS_WITHIN_MS, series


def shown_after_ms(page: Any, lane: Any, count: int) -> int:
    """How long it took from now until so many bars were open."""
    asked_ms = int(time.time() * 1000)
    seen(lane.locator("svg .bar.open")).to_have_count(count)
    moment_ms, last = page.evaluate("window.seenOpen.at(-1)")
    assert last == count
    return max(int(moment_ms) - asked_ms, 0)


def test_a_transaction_that_opens_and_aborts_is_seen_without_a_reload(tab: Tab, world: str) -> None:
    producer = transactional(world, "opened-and-aborted", SLOW_TIMEOUT_MS)
    page = tab()
    page.goto(TIMELINE)
    lane = page.locator("section.lane").nth(1)
    seen(page.locator("#live-state")).to_have_text("live")
    bars = lane.get_by_role("link", name="opened-and-aborted")
    producer.begin_transaction()
    producer.send(TOPIC, b"x", partition=1)
    producer.flush()
    seen(bars.locator(".bar.open")).to_have_count(1)
    seen(lane.locator(".notice")).to_contain_text("opened-and-aborted holds readers at offset")
    producer.abort_transaction()
    seen(bars.locator(".bar.aborted")).to_have_count(1)
    seen(lane.locator(".notice")).to_have_count(0)
    producer.close()


def test_all_tabs_of_a_browser_share_one_stream(chromium: Any, address: str, slow: Producer) -> None:
    """Browsers allow six connections to a host: the seventh tab would never be loaded."""
    context = chromium.new_context(base_url=address)
    streams: list[Any] = []
    context.on("request", lambda one: streams.append(one.frame.page) if "/events" in one.url else None)
    pages = [context.new_page() for _ in range(9)]
    for page in pages:
        page.goto("/hanging")
        seen(page.locator("#live-state")).to_have_text("live")
    assert streams == pages[:1]
    pages[0].close()
    slow.commit_transaction()
    for page in pages[1:]:
        seen(page.get_by_role("link", name="slow-importer")).to_have_count(0)
    assert len(streams) == 2, "another tab has taken over"
    context.close()


def test_the_overview_speaks_of_a_transaction_that_others_wait_for(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto("/")
    seen(page.locator(".sentences")).to_contain_text("slow-importer has held orders-1")
    page.get_by_role("link", name="slow-importer has held").click()
    seen(page.locator("h1")).to_have_text(f"Transactions of {TOPIC}")
    page.go_back()
    seen(page.locator("h1")).to_have_text("Overview")


def test_logging_in_and_out(chromium: Any, tmp_path: Path) -> None:
    with secured_broker(tmp_path) as servers:
        settings = settings_of(servers)
        sessions = Sessions(settings)
        with served(sessions, settings) as served_console:
            address = f"http://{served_console.host}"
            for width, scheme in SCREENS:
                context = chromium.new_context(
                    base_url=address, viewport={"width": width, "height": 700}, color_scheme=scheme
                )
                page = context.new_page()
                page.goto("/topics?q=t")
                examine(page, "log-in", scheme)
                context.close()
            context = chromium.new_context(base_url=address, viewport={"width": 320, "height": 700})
            page = context.new_page()
            page.goto("/topics?q=t")
            for password in ("wrong", "pencil"):
                page.get_by_label("User").fill("sam")
                page.get_by_label("Password").fill(password)
                page.get_by_role("button", name="Log in").click()
                if password == "wrong":
                    seen(page.get_by_role("alert")).to_contain_text("the password is another one")
                    examine(page, "log-in-refused")
            seen(page.locator("h1")).to_have_text("Topics")
            assert page.url.endswith("/topics?q=t")
            seen(page.get_by_role("link", name="tea", exact=True)).to_have_count(1)
            examine(page, "logged-in")
            page.get_by_role("button", name="Log out").click()
            seen(page.locator("h1")).to_have_text("Log in")
            context.close()
        sessions.close()


def test_who_logs_out_in_one_tab_is_logged_out_in_all(chromium: Any, tmp_path: Path) -> None:
    """What a user was shown must not stay on the screen: neither in the tab with the stream, nor in one it tells."""
    with secured_broker(tmp_path) as servers:
        settings = settings_of(servers)
        sessions = Sessions(settings)
        with served(sessions, settings) as served_console:
            context = chromium.new_context(base_url=f"http://{served_console.host}")
            pages = [context.new_page() for _ in range(3)]
            pages[0].goto("/topics")
            pages[0].get_by_label("User").fill("sam")
            pages[0].get_by_label("Password").fill("pencil")
            pages[0].get_by_role("button", name="Log in").click()
            for page in pages:
                page.goto("/topics")
                seen(page.get_by_role("link", name="tea", exact=True)).to_have_count(1)
                seen(page.locator("#live-state")).to_have_text("live")
            pages[1].get_by_role("button", name="Log out").click()
            for page in pages:
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


@pytest.mark.parametrize("key", ["Alt+ArrowRight", "Control+End", "Meta+ArrowRight"])
def test_keys_of_the_browser_are_left_to_it(tab: Tab, key: str) -> None:
    """Alt and an arrow go forth in its history."""
    page = tab()
    page.goto(TIMELINE)
    bar = page.locator("section.lane").first.locator("[data-bar]").first
    bar.focus()
    page.evaluate("addEventListener('keydown', event => { window.isTaken = event.defaultPrevented; })")
    page.keyboard.press(key)
    assert page.evaluate("window.isTaken") is False
    seen(bar).to_be_focused()


def test_a_bar_tells_of_its_transaction_to_keyboard_mouse_and_finger(
    tab: Tab, chromium: Any, address: str, slow: Producer
) -> None:
    page = tab()
    page.goto(TIMELINE)
    lane = page.locator("section.lane").nth(1)
    bars, detail = lane.locator("[data-bar]"), lane.locator("[data-detail]")
    bars.first.focus()
    seen(detail).to_contain_text("coordinator epoch")
    bars.last.hover(force=True)
    seen(detail).to_contain_text("slow-importer: open for")
    slow.commit_transaction()
    seen(detail).to_contain_text("slow-importer: committed after")
    context = chromium.new_context(base_url=address, has_touch=True, viewport={"width": 320, "height": 700})
    phone = context.new_page()
    phone.goto(TIMELINE)
    last = phone.locator("section.lane").nth(1).locator("[data-bar]").last
    last.tap(force=True)
    seen(phone.locator("section.lane").nth(1).locator("[data-detail]")).to_contain_text("slow-importer: committed")
    assert phone.url.endswith(TIMELINE)
    last.tap(force=True)
    seen(phone.locator("h1")).to_have_text("Transactional id slow-importer")
    context.close()


def test_a_list_of_keys_opens_and_closes(tab: Tab) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = tab()
    page.goto("/topics")
    page.keyboard.press("?")
    seen(page.get_by_role("dialog", name="Keys")).to_be_visible()
    assert Axe().run(page).response["violations"] == []
    page.keyboard.press("Escape")
    seen(page.locator("#keys")).to_be_hidden()
    page.locator("[data-search]").press("?")
    seen(page.locator("#keys")).to_be_hidden()


def test_following_messages_pauses_and_goes_on(tab: Tab, slow: Producer) -> None:
    page = tab()
    page.goto(f"/topics/{TOPIC}/messages?partition=1&isolation=read_uncommitted&limit=5")
    seen(page.locator("#live-state")).to_have_text("live")
    slow.send(TOPIC, b"seen while following", partition=1)
    slow.flush()
    seen(page.locator("tbody")).to_contain_text("seen while following")
    page.get_by_role("link", name="Pause").click()
    seen(page.locator("#live")).to_contain_text("This page stays at these offsets")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/static/" not in one.url else None)
    slow.send(TOPIC, b"written meanwhile", partition=1)
    slow.commit_transaction()
    other = tab()
    other.goto(f"/topics/{TOPIC}/messages?partition=1&isolation=read_uncommitted&limit=5")
    seen(other.locator("tbody")).to_contain_text("written meanwhile")
    slow.begin_transaction()
    slow.send(TOPIC, b"and after that", partition=1)
    slow.commit_transaction()
    seen(other.locator("tbody")).to_contain_text("and after that")
    assert "written meanwhile" not in page.locator("tbody").inner_text()
    assert asked == [], "a page that is paused asks for nothing"
    page.get_by_role("link", name="Follow the end").click()
    seen(page.locator("tbody")).to_contain_text("written meanwhile")


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
        with serving(process.bootstrap_servers, timeout_ms=5_000) as served:
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
