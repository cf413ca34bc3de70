"""What pages are made of: input from addresses, contents as JSON values, and problems that have a page of their own."""

from __future__ import annotations

import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from oncelog.client.admin import Admin
from oncelog.console.audit import AuditLog
from oncelog.console.contents import Contents, SchemaDecoder
from oncelog.console.settings import ConsoleSettings
from oncelog.console.watch import ClusterWatch, WatchState, wall_ms
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.snapshot import ClusterSnapshot
from oncelog.monitoring.topics import Topic

T = TypeVar("T")
V = TypeVar("V")

ROWS_PER_PAGE: Final = 100
CACHE_S: Final = 0.4
"""Less than the time between two polls: what tabs ask for when they hear of a poll is as new as the poll."""
CACHE_ENTRIES_MAX: Final = 64
KNOWN_S: Final = 60.0
"""How long what was read of a log is taken for what is in it: compaction may remove some of it."""
TEXT_MAX: Final = 1_000
SCANS_MAX: Final = 3
"""Pages that read records at the same time, for each session: each takes time, memory and a thread."""
SCAN_WAIT_S: Final = 2.0


class Problem(Exception):
    """Something that the user is told on a page of its own."""

    status = 400
    title = "This address cannot be shown"

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.advice = advice


class BadInput(Problem):
    """The address or the form says something that cannot be."""


class NotThere(Problem):
    status = 404
    title = "There is no such thing"


class Refused(Problem):
    status = 409
    title = "Not done"


class Forbidden(Problem):
    status = 403
    title = "Changes are not allowed"


class Unreachable(Problem):
    status = 503
    title = "The cluster does not answer"


class NotConfirmed(Problem):
    status = 504
    title = "The cluster has not answered"


class NotYet(Problem):
    status = 503
    title = "The cluster is asked for the first time"


class Busy(Problem):
    status = 503
    title = "The console is busy"


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    title: str
    data: dict[str, Any]
    live: bool = True
    """It is brought up to date while it is looked at."""
    download: tuple[str, bytes] | None = None
    """A name and contents: the answer is this file, and not the page."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """What can be had as a file, by name; by default the rows of the page, if it has some."""
    lines: Sequence[Mapping[str, Any]] | None = None
    """JSON lines, if they are not the rows of a table."""

    @property
    def exports(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return self.tables or ({"rows": self.data["rows"]} if "rows" in self.data else {})


class Query:
    """The part of an address behind the question mark, or a form, read with checks."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "", longest: int = TEXT_MAX) -> str:
        """A parameter as it was given: names and words to search for may begin and end with spaces."""
        found = self._values.get(name, default)
        if len(found) > longest:
            raise BadInput(f"{name} is longer than {longest:,} characters")
        return found

    def word(self, name: str, default: str = "") -> str:
        """A number, a choice, a time: spaces around it mean nothing."""
        return self.text(name, default).strip() or default

    def required(self, name: str, longest: int = TEXT_MAX) -> str:
        found = self.text(name, longest=longest)
        if not found:
            raise BadInput(f"{name} is missing")
        return found

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.word(name)
        if not text:
            return default
        try:
            found = int(text)
        except ValueError:
            raise BadInput(f"{name} is a number, not {text!r}") from None
        if not low <= found <= high:
            raise BadInput(f"{name} is a number from {low:,} to {high:,}, not {found:,}")
        return found

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """The first is the default."""
        found = self.word(name) or choices[0]
        if found not in choices:
            raise BadInput(f"{name} is one of {', '.join(choices)}, not {found!r}")
        return found


class Recent(Generic[V]):
    """What was used lately, by key: at most 64 values."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Any, ...], V] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> V | None:
        return self._found.get(key)

    def put(self, key: tuple[Any, ...], value: V) -> V:
        self._found[key] = value
        self._found.move_to_end(key)
        while len(self._found) > CACHE_ENTRIES_MAX:
            self._found.popitem(last=False)
        return value


class RecentResults:
    """Answers of the cluster that several tabs want at the same time.

    Each is asked for once between two polls, or more seldom if it costs much, and never by two threads at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Recent[tuple[float, Any]] = Recent()
        self._known: Recent[tuple[float, Any]] = Recent()
        self._asked_soon: dict[tuple[Any, ...], Future[Any]] = {}
        self._asking: dict[tuple[Any, ...], tuple[threading.Lock, int]] = {}

    def get(self, key: tuple[Any, ...], ask: Callable[[], T], keep_s: float = CACHE_S) -> T:
        with self._alone(key):
            with self._lock:
                entry = self._found.get(key)
            if entry is not None and time.monotonic() - entry[0] < keep_s:
                found: T = entry[1]
                return found
            found = ask()
            with self._lock:
                self._found.put(key, (time.monotonic(), found))
            return found

    def get_soon(self, key: tuple[Any, ...], ask: Callable[[], T], keep_s: float, wait_s: float | None) -> T | None:
        """The same, or None if it takes longer than a page should: it is asked for all the same, for later pages."""
        with self._lock:
            asked = self._asked_soon.get(key)
            if asked is None:
                asked = self._asked_soon[key] = Future()
                threading.Thread(target=self._answer_soon, args=(asked, key, ask, keep_s), daemon=True).start()
        try:
            found: T = asked.result(wait_s)
        except TimeoutError:
            return None
        return found

    def _answer_soon(self, asked: Future[Any], key: tuple[Any, ...], ask: Callable[[], T], keep_s: float) -> None:
        try:
            asked.set_result(self.get(key, ask, keep_s))
        except Exception as error:  # noqa: BLE001  # it is raised to the page that waits
            asked.set_exception(error)
        finally:
            with self._lock:
                del self._asked_soon[key]

    def known(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What earlier answers to a question have left for later ones. Only for use where that question is asked."""
        now_s = time.monotonic()
        with self._lock:
            entry = self._known.get(key)
            if entry is None or now_s - entry[0] > KNOWN_S:
                entry = (now_s, make())
            known: T = self._known.put(key, entry)[1]
            return known

    @contextmanager
    def _alone(self, key: tuple[Any, ...]) -> Iterator[None]:
        with self._lock:
            lock, users = self._asking.get(key) or (threading.Lock(), 0)
            self._asking[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                users = self._asking[key][1] - 1
                if users:
                    self._asking[key] = (lock, users)
                else:
                    del self._asking[key]


@dataclass(slots=True)
class Console:
    """What every page can use. `admin` is another client than the poller's: pages do not wait for polls."""

    settings: ConsoleSettings
    admin: Admin
    watch: ClusterWatch
    token: str
    """Every form has it: a request without it comes from no page of this console."""
    recent: RecentResults = field(default_factory=RecentResults)
    schemas: SchemaDecoder | None = None
    scans: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(SCANS_MAX))
    now_ms: Callable[[], int] = wall_ms

    @property
    def audit(self) -> AuditLog | None:
        return AuditLog(self.settings.audit_log) if self.settings.audit_log is not None else None

    @property
    def is_away(self) -> bool:
        """The cluster does not answer: pages show what is known, and do not wait for what else they could ask."""
        return self.watch.state.failed_since_ms is not None

    def look(self) -> WatchState:
        return self.watch.look()

    def snapshot(self) -> ClusterSnapshot:
        """The last one, however old: the page says so. Raises Unreachable or NotYet if there has never been one."""
        state = self.look()
        if state.snapshot is not None:
            return state.snapshot
        advice = "This page is shown as soon as the cluster has answered."
        if state.error:
            raise Unreachable(state.error, f"The console goes on trying. {advice}")
        raise NotYet("A cluster with thousands of partitions takes some seconds.", advice)

    def contents(self, topic: str) -> Contents:
        return Contents(topic, self.settings.masks, self.schemas)

    def topic(self, name: str) -> Topic:
        found = self.snapshot().topics.get(name)
        if found is None:
            raise NotThere(f"There is no topic {name!r}.", "It may have been deleted, or created a moment ago.")
        return found

    def partition(self, topic: Topic, number: int) -> TopicPartition:
        known = [one.info.partition for one in topic.partitions]
        if number not in known:
            raise BadInput(f"Topic {topic.info.name} has partitions 0 to {max(known)}, not {number}.")
        return TopicPartition(topic.info.name, number)

    @contextmanager
    def scan(self) -> Iterator[None]:
        """Around what reads records. Raises Busy if too many do so at the same time."""
        if not self.scans.acquire(timeout=SCAN_WAIT_S):
            raise Busy("Other pages of yours are searching.", "Try again when they have finished.")
        try:
            yield
        finally:
            self.scans.release()

    def command(self, *words: str) -> str:
        """A command on the same cluster, to be copied."""
        return shlex.join(["oncelog", *words, *self.settings.command_suffix])


def if_readable(read: Callable[[], T]) -> T | None:
    """What is read of a topic; None if ACLs do not let whoever asks read it."""
    try:
        return read()
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return None


def paged(rows: Sequence[T], query: Query) -> tuple[Sequence[T], dict[str, Any]]:
    """The rows of one page, and where the others are."""
    pages = max((len(rows) + ROWS_PER_PAGE - 1) // ROWS_PER_PAGE, 1)
    number = min(query.number("page", 1, 1, 1_000_000), pages)
    start = (number - 1) * ROWS_PER_PAGE
    return rows[start : start + ROWS_PER_PAGE], {"page": number, "pages": pages, "rows": len(rows)}
