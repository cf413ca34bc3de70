"""Whose rights a request has: those of the console's own client, or of the Kafka user who has logged in.

Without a log-in everybody sees the cluster as the console's client does. With one, each session has clients and a
poller of its own, which log in to the cluster as the user: what ACLs hide from the user, no page of theirs shows.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from oncelog.client.admin import Admin
from oncelog.client.config import ClientConfig
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
SESSIONS_MAX: Final = 50
PAGE_TIMEOUT_MS: Final = 5_000
"""How long a page waits for the cluster at most: people do not wait longer."""


class LogInFailed(Problem):
    status = 401
    title = "Not logged in"


@dataclass(slots=True)
class Visit:
    console: Console
    streams: EventStreams
    user: str | None = None
    """None where nobody logs in."""


class Visits(Protocol):
    needs_log_in: bool

    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        """None: whoever asks must log in."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OneVisit:
    """Everybody has the rights of the console's own client."""

    needs_log_in = False

    def __init__(self, console: Console) -> None:
        self._visit = Visit(console, EventStreams(console.watch))

    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        return self._visit

    def start(self) -> None:
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

    needs_log_in = True

    def __init__(self, settings: ConsoleSettings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock_s = clock_s
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()
        self._is_stopping = False

    def find(self, cookies: Mapping[str, str]) -> Visit | None:
        token = cookies.get(COOKIE, "")
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
        clients = (Admin(client), Admin(client))
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
        console = Console(replace(self._settings, client=client), pages, watch, secrets.token_urlsafe(24))
        session = _Session(Visit(console, EventStreams(watch), user), clients, self._clock_s(), self._clock_s())
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[token] = session
            is_stopping = self._is_stopping
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
        """Sessions start their own pollers."""

    def stop(self) -> None:
        """Only tells the pollers, because a signal handler calls it; `close` ends the sessions."""
        self._is_stopping = True
        for session in list(self._sessions.values()):
            session.visit.console.watch.stop()

    def close(self) -> None:
        for token in list(self._sessions):
            self.log_out(token)

    def _end_old(self) -> None:
        now_s = self._clock_s()
        for token in [token for token, session in list(self._sessions.items()) if session.is_over(now_s)]:
            self.log_out(token)


def for_pages(client: ClientConfig) -> ClientConfig:
    return replace(client, default_api_timeout_ms=min(client.default_api_timeout_ms, PAGE_TIMEOUT_MS))


def _check(client: Admin) -> None:
    try:
        client.describe_cluster()
    except KafkaError as error:
        if error.code in RETRIABLE:
            raise Unreachable(error.message or error.code.name, "Try again when the cluster answers.") from error
        logger.info("a log-in was refused: %s", error.code.name)
        raise LogInFailed("The cluster knows no such user, or the password is another one.") from error
