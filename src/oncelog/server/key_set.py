"""The keys with which an authority signs tokens: a JWKS, from an https address or a file, read again now and then.

Reading is work for a thread. While nothing could be read, there are no keys, and every token is refused. A key that is
not in the set may be a new one: the set is read early then, once for each id, and for so many ids at a time.
"""

from __future__ import annotations

import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from oncelog.core.config import ConfigError
from oncelog.security.oauthbearer import VerifyKey, parse_key_set

if TYPE_CHECKING:
    from oncelog.core.clock import Scheduler, Timer
    from oncelog.core.worker import Worker
    from oncelog.server.listener import OAuthSettings

log = logging.getLogger("oncelog.server")

CONTENT_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
MISSED_MAX: Final = 16
MISSED_MS: Final = 60_000


class KeySet:
    def __init__(self, settings: OAuthSettings, scheduler: Scheduler, worker: Worker) -> None:
        """Raises ConfigError if there is a file and it cannot be used."""
        self._settings = settings
        self._scheduler = scheduler
        self._worker = worker
        self._missed_ms: dict[str, int] = {}
        self._is_reading = False
        self._failures = 0
        self._is_closed = False
        self._timer: Timer | None = None
        self.keys: Mapping[str, VerifyKey] = {}
        if urlsplit(settings.keys_url).scheme == "file":
            try:
                self.keys = read_key_set(settings.keys_url)
            except (OSError, ValueError) as error:
                raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url: no keys can be read there: {error}") from None

    def start(self) -> None:
        if self.keys:
            self._read_in(self._settings.refresh_ms)
        else:
            self._read()

    def close(self) -> None:
        self._is_closed = True

    def miss(self, key_id: str) -> None:
        """Note that a token was signed with an unknown key: the keys may be fetched again."""
        now_ms = self._scheduler.monotonic_ms()
        self._missed_ms = {known: at_ms for known, at_ms in self._missed_ms.items() if now_ms - at_ms < MISSED_MS}
        if key_id not in self._missed_ms and len(self._missed_ms) < MISSED_MAX:
            self._missed_ms[key_id] = now_ms
            self._read()

    def _read(self) -> None:
        if self._is_reading or self._is_closed:
            return
        self._is_reading = True
        self._worker.run(lambda: read_key_set(self._settings.keys_url)).then(self._use)

    def _read_in(self, delay_ms: int) -> None:
        """Whatever a read was for, the next one follows it: a key that was withdrawn must not stay in use."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later_ms(delay_ms, self._read)

    def _use(self, read: Mapping[str, VerifyKey] | Exception) -> None:
        self._is_reading = False
        if isinstance(read, Exception):
            self._failures += 1
            log.error("the keys for tokens cannot be read from %s: %s", self._settings.keys_url, read)
        else:
            self._failures, self.keys = 0, read
        if not self._is_closed:
            self._read_in(self._backoff_ms() if self._failures else self._settings.refresh_ms)

    def _backoff_ms(self) -> int:
        return min(self._settings.backoff_max_ms, self._settings.backoff_ms << min(self._failures - 1, 20))


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError("it points to an address without TLS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def read_key_set(url: str, context: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> dict[str, VerifyKey]:
    """Raises OSError or ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            content = file.read(CONTENT_BYTES_MAX + 1)
    else:
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context()), _OnlyHttps)
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(CONTENT_BYTES_MAX + 1)
    if len(content) > CONTENT_BYTES_MAX:
        raise ValueError(f"it is larger than {CONTENT_BYTES_MAX} bytes")
    return parse_key_set(content)
