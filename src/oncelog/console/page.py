"""What pages are made of: input from addresses, contents as JSON values, and problems that have a page of their own."""

from __future__ import annotations

import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from oncelog.client.admin import Admin
from oncelog.console.audit import AuditLog
from oncelog.console.settings import ConsoleSettings
from oncelog.console.watch import ClusterWatch, WatchState, wall_ms
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.snapshot import ClusterSnapshot
from oncelog.monitoring.timeline import KnownBatches
from oncelog.monitoring.topics import Topic

T = TypeVar("T")
V = TypeVar("V")

ROWS_PER_PAGE: Final = 100
CACHE_S: Final = 2.0
CACHE_ENTRIES_MAX: Final = 64
TEXT_MAX: Final = 1_000


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


class Query:
    """The part of an address behind the question mark, or a form, read with checks."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        found = self._values.get(name, default).strip()
        if len(found) > TEXT_MAX:
            raise BadInput(f"{name} is longer than {TEXT_MAX:,} characters")
        return found

    def required(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise BadInput(f"{name} is missing")
        return found

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
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
        found = self.text(name) or choices[0]
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

    Each is asked for once in two seconds, and never by two threads at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Recent[tuple[float, Any]] = Recent()
        self._known: Recent[KnownBatches] = Recent()
        self._asking: dict[tuple[Any, ...], tuple[threading.Lock, int]] = {}

    def get(self, key: tuple[Any, ...], ask: Callable[[], T]) -> T:
        with self._alone(key):
            with self._lock:
                entry = self._found.get(key)
            if entry is not None and time.monotonic() - entry[0] < CACHE_S:
                found: T = entry[1]
                return found
            found = ask()
            with self._lock:
                self._found.put(key, (time.monotonic(), found))
            return found

    def known_batches(self, key: tuple[Any, ...]) -> KnownBatches:
        """Those that were read for this key before. Only for use inside of a question with the same key."""
        with self._lock:
            return self._known.put(key, self._known.get(key) or KnownBatches())

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
    now_ms: Callable[[], int] = wall_ms

    @property
    def audit(self) -> AuditLog | None:
        return AuditLog(self.settings.audit_log) if self.settings.audit_log is not None else None

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

    def command(self, *words: str) -> str:
        """A command on the same cluster, to be copied."""
        return shlex.join(["oncelog", *words, *self.settings.command_suffix])


def paged(rows: Sequence[T], query: Query) -> tuple[Sequence[T], dict[str, Any]]:
    """The rows of one page, and where the others are."""
    pages = max((len(rows) + ROWS_PER_PAGE - 1) // ROWS_PER_PAGE, 1)
    number = min(query.number("page", 1, 1, 1_000_000), pages)
    start = (number - 1) * ROWS_PER_PAGE
    return rows[start : start + ROWS_PER_PAGE], {"page": number, "pages": pages, "rows": len(rows)}
