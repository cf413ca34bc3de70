"""Whose rights a request has: those of the console's own client, or of the Kafka user who has logged in.

Without a log-in everybody sees the cluster as the console's client does. With one, each session has clients and a
poller of its own, which log in to the cluster as the user: what ACLs hide from the user, no page of theirs shows.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from oncelog.client.admin import Admin
from oncelog.client.config import ClientConfig
from oncelog.console.contents import SchemaDecoder
from oncelog.console.events import EventStreams
from oncelog.console.page import Busy, Console, Problem, Unreachable
from oncelog.console.settings import ConsoleSettings
from oncelog.console.watch import ClusterWatch
from oncelog.core.errors import RETRIABLE, KafkaError
from oncelog.monitoring.snapshot import Poller

logger = logging.getLogger(__name__)

COOKIE: Final = "oncelog-session"
SESSION_S: Final = 12 * 3600
IDLE_S: Final = 2 * 3600
SWEEP_S: Final = 60.0
"""How often sessions that are over are looked for."""
SESSIONS_MAX: Final = 50
SESSION_STREAMS_MAX: Final = 12
"""Browsers allow six connections to a host: two of them for each session."""
FAILURES_MAX: Final = 10
FAILURES_S: Final = 60.0
"""After so many failed log-ins within this time, an address has to wait."""
ADDRESSES_MAX: Final = 1_000
PAGE_TIMEOUT_MS: Final = 5_000
"""How long a page waits for the cluster at most: people do not wait longer."""
POLL_TIMEOUT_MS: Final = 10_000
"""Of each question of a poll: nobody waits for it, and the topics of a large cluster take their time."""


class LogInFailed(Problem):
    status = 401
    title = "Not logged in"


class TooManyFailures(Problem):
    status = 429
    title = "Not logged in"


class Failures:
    """Failed log-ins by the address they came from. Used by the event loop alone."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failed_s: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises TooManyFailures. Nobody is asked about the password then, so that it cannot be found out either."""
        if len(self._recent(address)) >= FAILURES_MAX:
            raise TooManyFailures("Too many log-ins from your address have failed.", "Wait a minute.")

    def add(self, address: str) -> None:
        self._failed_s[address] = [*self._recent(address), self._clock_s()][-FAILURES_MAX:]
        self._failed_s.move_to_end(address)
        while len(self._failed_s) > ADDRESSES_MAX:
            self._failed_s.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        return [at for at in self._failed_s.get(address, ()) if at > self._clock_s() - FAILURES_S]


@dataclass(slots=True)
class Visit:
    console: Console
    streams: EventStreams
    user: str | None = None
    """None where nobody logs in."""


class Visits(Protocol):
    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        """None: whoever asks must log in."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OneVisit:
    """Everybody has the rights of the console's own client."""

    def __init__(self, console: Console) -> None:
        self._visit = Visit(console, EventStreams(console.watch))

    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        return self._visit

    def start(self) -> None:
        # Whoever starts a console will look at it soon: a large cluster takes a second or two to be asked.
        self._visit.console.watch.keep_fresh()
        self._visit.console.watch.start()

    def stop(self) -> None:
        self._visit.console.watch.stop()


@dataclass(slots=True)
class _Session:
    visit: Visit
    clients: tuple[Admin, ...]
    began_s: float
    used_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s - self.began_s > SESSION_S or now_s - self.used_s > IDLE_S

    def end(self) -> None:
        self.visit.console.watch.stop()
        for client in self.clients:
            client.close()


class Sessions:
    """Log-ins by the cluster's own users. Nothing of them is on disk: a console that is started anew asks again."""

    def __init__(self, settings: ConsoleSettings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock_s = clock_s
        self._sessions: dict[str, _Session] = {}
        self.failures = Failures(clock_s)
        # Browsers take a cookie with this prefix only through TLS and from the host itself, for all its paths.
        self.cookie = f"__Host-{COOKIE}" if settings.certificate is not None else COOKIE
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._decoder = decoder_of(settings)

    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        token = cookies.get(self.cookie, "")
        with self._lock:
            session = self._sessions.get(token)
            if session is None or session.is_over(self._clock_s()):
                return None
            session.used_s = self._clock_s()
            return session.visit

    def log_in(self, user: str, password: str) -> str:
        """Returns the session's token. Raises LogInFailed if the cluster refuses them."""
        self._end_old()
        with self._lock:
            if len(self._sessions) >= SESSIONS_MAX:
                raise Busy("Too many people are logged in.", "Sessions end two hours after their last page.")
        client = replace(
            for_pages(self._settings.client), sasl_username=user, sasl_password=password, sasl_jaas_config=None
        )
        clients = (Admin(client), Admin(for_polls(client)))
        try:
            _check(clients[0])
        except BaseException:
            for one in clients:
                one.close()
            raise
        return self._begin(user, client, clients)

    def _begin(self, user: str, client: ClientConfig, clients: tuple[Admin, Admin]) -> str:
        pages, polls = clients
        watch = ClusterWatch(Poller(polls), self._settings.poll_interval_ms)
        settings = replace(self._settings, client=client)
        console = Console(settings, pages, watch, secrets.token_urlsafe(24), schemas=self._decoder)
        streams = EventStreams(watch, SESSION_STREAMS_MAX)
        session = _Session(Visit(console, streams, user), clients, self._clock_s(), self._clock_s())
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[token] = session
            is_stopping = self._stopping.is_set()
        watch.start()
        if is_stopping:
            self.log_out(token)
        return token

    def log_out(self, token: str) -> None:
        with self._lock:
            session = self._sessions.pop(token, None)
        if session is not None:
            session.end()

    def start(self) -> None:
        """Sessions start their own pollers. A thread ends those that are over: their clients hold a password."""
        threading.Thread(target=self._sweep, name="oncelog-console-sessions", daemon=True).start()

    def _sweep(self) -> None:
        while not self._stopping.wait(SWEEP_S):
            self._end_old()

    def stop(self) -> None:
        """Only tells the pollers, because a signal handler calls it; `close` ends the sessions."""
        self._stopping.set()
        for session in list(self._sessions.values()):
            session.visit.console.watch.stop()

    def close(self) -> None:
        for token in list(self._sessions):
            self.log_out(token)

    def _end_old(self) -> None:
        now_s = self._clock_s()
        for token in [token for token, session in list(self._sessions.items()) if session.is_over(now_s)]:
            self.log_out(token)


def decoder_of(settings: ConsoleSettings) -> SchemaDecoder | None:
    """One decoder for all sessions: it keeps the schemas that were fetched."""
    return SchemaDecoder(settings.schema_registry) if settings.schema_registry is not None else None


def for_pages(client: ClientConfig) -> ClientConfig:
    return replace(client, default_api_timeout_ms=min(client.default_api_timeout_ms, PAGE_TIMEOUT_MS))


def for_polls(client: ClientConfig) -> ClientConfig:
    return replace(client, default_api_timeout_ms=POLL_TIMEOUT_MS)


def _check(client: Admin) -> None:
    try:
        client.describe_cluster()
    except KafkaError as error:
        if error.code in RETRIABLE:
            raise Unreachable(error.message or error.code.name, "Try again when the cluster answers.") from error
        logger.info("a log-in was refused: %s", error.code.name)
        raise LogInFailed("The cluster knows no such user, or the password is another one.") from error
