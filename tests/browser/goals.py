"""What the console costs: the first page of a large cluster in a browser, and a broker's latency with open tabs.

`python -m tests.browser.goals` prints the figures beside the goals; `first-page`, `tabs`, `tabs-low` or
`tabs-equal` behind it measures one of them. The exit code is 1 if a goal is missed.

Tabs: the latency of acknowledgements at a steady pace, beside transactions that the pages show, in turns: with ten
open tabs, and with a console that is stopped (SIGSTOP), which neither polls nor answers. Console, broker and clients
share the machine's cores. The console is measured as it runs beside a broker, for which the goal is, and for comparison
at a low priority and at that of everybody else. Tabs are requests like those of the console's own script. As their
browsers are on other machines, they get what is left of the processor; that they were served all the same is shown by
the number of pages.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from oncelog.client import Admin, ClientConfig, NewTopic, Producer, TopicPartition
from oncelog.testing import BrokerProcess, broker
from oncelog.testing.broker import temporary_folder
from tests.browser.conftest import chromium_path, launch_arguments

TOPICS: Final = 5_000
PARTITIONS_OF_EACH: Final = 10
TOPICS_PER_REQUEST: Final = 50
SNAPSHOT_S_MAX: Final = 180.0
FIRST_PAGES: Final = ("/", "/topics", "/topics?q=4999", "/brokers")
FIRST_PAGE_BYTES_MAX: Final = 100_000
FIRST_PAINT_MS_MAX: Final = 1_000
TABS: Final = (
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/timeline",
    "/topics/orders/timeline?x=time",
    "/topics/orders/messages",
    "/transactions",
    "/hanging",
    "/groups",
    "/groups/billing",
)
REST_FACTOR: Final = 3
"""As in console.js."""
TURNS: Final = 15
"""Of each kind. What else the machine does disturbs some of them: the median of their ratios is compared."""
TURN_S: Final = 3.0
"""A console that is stopped for longer takes the answers of the cluster for lost."""
SETTLE_S: Final = 0.7
WARM_UP_S: Final = 8.0
"""Windows of timelines fill, and everything was asked for once."""
RATE: Final = 200
"""Records a second whose acknowledgements are timed."""
TRANSACTIONS: Final = 20
"""A second, in all turns."""
P99_FACTOR_MAX: Final = 1.1


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def console(servers: str, priority: str | None = None) -> Iterator[str]:
    """The address of a console in a process of its own."""
    with console_process(servers, priority) as (address, _):
        yield address


@contextlib.contextmanager
def console_process(servers: str, priority: str | None) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "oncelog", "console", "-b", servers, "--listen", "127.0.0.1:0"]
    command += [] if priority is None else ["--priority", priority]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].rstrip("/"), process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)


def create_topics(servers: str, partitions: int) -> None:
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin:
        names = [NewTopic(f"topic-{number:05}", partitions) for number in range(TOPICS)]
        for at in range(0, TOPICS, TOPICS_PER_REQUEST):
            admin.create_topics(names[at : at + TOPICS_PER_REQUEST])


def first_page() -> bool:
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        say("There is no Chromium on the PATH.")
        return False
    with broker({"offsets.topic.num.partitions": 2}) as process:
        began_s = time.monotonic()
        create_topics(process.bootstrap_servers, PARTITIONS_OF_EACH)
        say(f"{TOPICS:,} topics with {TOPICS * PARTITIONS_OF_EACH:,} partitions in {time.monotonic() - began_s:.0f} s")
        with console(process.bootstrap_servers) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=launch_arguments())
            began_s = time.monotonic()
            found = [first_paint(browser, address + "/")]
            wait_for_snapshot(address)
            say(f"the state of the whole cluster is known after {time.monotonic() - began_s:.1f} s")
            found += [first_paint(browser, address + path) for path in FIRST_PAGES]
            browser.close()
    for where, paint_ms, size in found:
        say(f"{where:30} first paint {paint_ms:6.0f} ms (goal {FIRST_PAINT_MS_MAX:,}), "
              f"{size:,} bytes (goal {FIRST_PAGE_BYTES_MAX:,})")  # fmt: skip
    return all(paint_ms < FIRST_PAINT_MS_MAX and size < FIRST_PAGE_BYTES_MAX for _, paint_ms, size in found)


def wait_for_snapshot(address: str) -> None:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    status, deadline_s = 503, time.monotonic() + SNAPSHOT_S_MAX
    while status == 503:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"The cluster is not known after {SNAPSHOT_S_MAX:.0f} s: is the machine busy?")
        connection.request("GET", "/topics?format=json")
        answer = connection.getresponse()
        answer.read()
        status = answer.status
    connection.close()


def first_paint(browser: Any, address: str) -> tuple[str, float, int]:
    """In a browser that has nothing in its cache, with the bytes of everything that the page loads."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    title = page.locator("h1").inner_text()
    paints = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
    found = page.evaluate(paints)
    while not found:
        page.wait_for_timeout(20)
        found = page.evaluate(paints)
    loaded = (
        "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind)).map(one => one.transferSize)"
    )
    size = sum(page.evaluate(loaded))
    context.close()
    return f"{urlsplit(address).path}: {title}", found[0], size


def tabs() -> bool:
    factor = _tabs(None)
    say(f"factor {factor:.2f} for a console beside its broker (goal {P99_FACTOR_MAX})")
    return factor <= P99_FACTOR_MAX


def tabs_low() -> bool:
    say(f"factor {_tabs('low'):.2f} for a console at a low priority (no goal)")
    return True


def tabs_equal() -> bool:
    say(f"factor {_tabs('equal'):.2f} for a console at the priority of everybody else (no goal)")
    return True


def _tabs(priority: str | None) -> float:
    settings = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
    with temporary_folder() as folder:
        # In the session of the others: Linux shares the processor between sessions before it looks at priorities.
        process = BrokerProcess(folder / "data", settings, log_level="warning").start()
        try:
            return _tabs_on(process, priority)
        finally:
            process.kill()


def _tabs_on(process: BrokerProcess, priority: str | None) -> float:
    servers = process.bootstrap_servers
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin:
        admin.create_topics([NewTopic("orders", 3), NewTopic("measured", 1)])
        admin.alter_group_offsets("billing", {TopicPartition("orders", number): 0 for number in range(3)})
    with console_process(servers, priority) as (address, console_pid):
        spawn = multiprocessing.get_context("spawn")
        is_over, pages = spawn.Event(), spawn.Array("q", 2)
        helpers = [
            spawn.Process(target=_transactions, args=(servers, is_over)),
            spawn.Process(target=_browse, args=(address, is_over, pages)),
        ]
        for one in helpers:
            one.start()
        try:
            turns = _take_turns(servers, Watched(process.pid, console_pid, pages))
        finally:
            is_over.set()
            os.kill(console_pid, signal.SIGCONT)
            for one in helpers:
                one.join(30)
                one.kill()
    return _sum_up(turns, pages)


class Watched(NamedTuple):
    broker_pid: int
    console_pid: int
    pages: Any
    """How many were shown, and how many were not."""


class Turn(NamedTuple):
    latencies: list[float]
    broker: ProcessorUse
    console: ProcessorUse
    pages: int


class ProcessorUse(NamedTuple):
    """In seconds, of all threads of a process."""

    ran_s: float
    waited_s: float
    """While it could have run."""

    @classmethod
    def of(cls, pid: int) -> ProcessorUse:
        found = [one.read_text().split() for one in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return cls(sum(int(one[0]) for one in found) / 1e9, sum(int(one[1]) for one in found) / 1e9)

    def since(self, before: ProcessorUse) -> ProcessorUse:
        return ProcessorUse(self.ran_s - before.ran_s, self.waited_s - before.waited_s)

    def __str__(self) -> str:
        return f"runs {self.ran_s / TURN_S:.1%} and waits {self.waited_s / TURN_S:.1%} of the time"


def _take_turns(servers: str, watched: Watched) -> list[tuple[Turn, Turn]]:
    """Pairs: without tabs, and with."""
    found = []
    with Producer({"bootstrap.servers": servers, "linger.ms": 0}) as producer:
        _latencies(producer, WARM_UP_S)
        for number in range(TURNS):
            os.kill(watched.console_pid, signal.SIGSTOP)
            without = _turn(producer, watched)
            os.kill(watched.console_pid, signal.SIGCONT)
            with_tabs = _turn(producer, watched)
            found.append((without, with_tabs))
            p99s = [_p99(turn.latencies) for turn in (without, with_tabs)]
            say(f"  {number + 1:2}: p99 {p99s[0]:.2f} ms, with tabs {p99s[1]:.2f} ms; "
                f"broker {with_tabs.broker} (without tabs: {without.broker}), "
                f"console {with_tabs.console}, {with_tabs.pages / TURN_S:.1f} pages a second")  # fmt: skip
    return found


def _turn(producer: Producer, watched: Watched) -> Turn:
    _latencies(producer, SETTLE_S)
    pids, shown = (watched.broker_pid, watched.console_pid), watched.pages[0]
    before = [ProcessorUse.of(pid) for pid in pids]
    latencies = _latencies(producer, TURN_S)
    broker_use, console_use = (ProcessorUse.of(pid).since(old) for pid, old in zip(pids, before, strict=True))
    return Turn(latencies, broker_use, console_use, watched.pages[0] - shown)


def _sum_up(turns: list[tuple[Turn, Turn]], pages: Any) -> float:
    without, with_tabs = ([one for turn in kind for one in turn.latencies] for kind in zip(*turns, strict=True))
    ratios = [_p99(second.latencies) / _p99(first.latencies) for first, second in turns]
    say(f"{pages[0]:,} pages were shown, {pages[1]:,} were not")
    say(f"produce p99 of all turns {_p99(without):.2f} ms without tabs, {_p99(with_tabs):.2f} ms with {len(TABS)}: "
        f"factor {_p99(with_tabs) / _p99(without):.2f}; median of {len(ratios)} pairs of turns "
        f"{statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")  # fmt: skip
    return statistics.median(ratios)


def _latencies(producer: Producer, lasts_s: float) -> list[float]:
    """In milliseconds, of records sent at a steady pace: one that is late does not hold the next one up."""
    found: list[float] = []
    waiting = []
    began_s = time.monotonic()
    for number in range(int(lasts_s * RATE)):
        time.sleep(max(began_s + number / RATE - time.monotonic(), 0))
        sent_s = time.monotonic()
        future = producer.send("measured", bytes(100))
        future.add_done_callback(lambda _, sent_s=sent_s: found.append((time.monotonic() - sent_s) * 1000))
        waiting.append(future)
    for future in waiting:
        future.result(60)
    return found


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def _transactions(servers: str, is_over: Event) -> None:
    with Producer({"bootstrap.servers": servers, "transactional.id": "shop"}) as producer:
        producer.init_transactions()
        while not is_over.wait(1 / TRANSACTIONS):
            with producer.transaction():
                for number in range(3):
                    producer.send("orders", b"order", partition=number)


def _browse(address: str, is_over: Event, pages: Any) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    threads = [threading.Thread(target=_tab, args=(address, path, is_over, pages), daemon=True) for path in TABS]
    for one in threads:
        one.start()
    is_over.wait()


def _tab(address: str, path: str, is_over: Event, pages: Any) -> None:
    host = urlsplit(address).netloc
    stream = HTTPConnection(host, timeout=60)
    stream.request("GET", "/events")
    events = stream.getresponse()
    while not is_over.is_set():
        if not events.readline().startswith(b"event:"):
            continue
        began_s = time.monotonic()
        page = HTTPConnection(host, timeout=60)
        page.request("GET", path, headers={"Accept": "text/html"})
        answer = page.getresponse()
        answer.read()
        page.close()
        with pages.get_lock():
            pages[0 if answer.status == 200 else 1] += 1
        time.sleep(REST_FACTOR * (time.monotonic() - began_s))
    stream.close()


if __name__ == "__main__":
    measurements = {"first-page": first_page, "tabs": tabs, "tabs-low": tabs_low, "tabs-equal": tabs_equal}
    results = [measurements[name]() for name in sys.argv[1:] or measurements]
    sys.exit(0 if all(results) else 1)
