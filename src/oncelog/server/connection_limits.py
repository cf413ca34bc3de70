"""How many connections there may be, and how fast new ones may come: in all, of a listener, of an address.

One above a number is closed at once. Deviation: above a rate, Kafka leaves new connections in the queue of the system;
here they are accepted, and nothing is read from them for as long. Above the rate of an address they are held and then
closed, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog.core.config import INT_MAX, ConfigError, Settings
from oncelog.security.quotas import WINDOW_MS, Rate

if TYPE_CHECKING:
    from oncelog.security.quotas import QuotaTable

_RATES_MAX: Final = 10_000


class Admission(NamedTuple):
    refusal: str | None = None
    """Which limit closes it, with its value."""
    delay_ms: int = 0
    """How long it has to wait: for its first answer, or for its end if it is refused."""


class ListenerLimits(NamedTuple):
    connections_max: int = INT_MAX
    rate_max: int = INT_MAX


class ConnectionLimits:
    def __init__(
        self,
        settings: Callable[[], Settings],
        listeners: Mapping[str, ListenerLimits],
        overrides: Mapping[str, int],
        descriptors_max: int,
        quotas: QuotaTable,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._overrides = overrides
        self._descriptors_max = descriptors_max
        self._quotas = quotas
        self._now_ms = now_ms
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._rates: dict[tuple[str, str], Rate] = {}

    def admit(self, address: str, listener: str) -> Admission:
        """Counts it, unless it is refused at once. `forget` is for those that were counted."""
        refusal = self._number_refusal(address, listener)
        if refusal is not None:
            return Admission(refusal)
        limit = self._quotas.limit_of_address(address)
        if limit is not None:
            delay_ms = self._delay_ms("address", address, limit)
            if delay_ms:
                return Admission(f"connection_creation_rate of this address is {limit:g}", delay_ms)
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        everybody = self._settings().integer("max.connection.creation.rate")
        own = self._listeners[listener].rate_max if listener in self._listeners else INT_MAX
        delay_ms = max(self._delay_ms("all", "", everybody), self._delay_ms("listener", listener, own))
        return Admission(None, delay_ms)

    def forget(self, address: str, listener: str) -> None:
        for counter, key in ((self._by_address, address), (self._by_listener, listener)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def _number_refusal(self, address: str, listener: str) -> str | None:
        settings = self._settings()
        per_address = self._overrides.get(address, settings.integer("max.connections.per.ip"))
        own = self._listeners[listener].connections_max if listener in self._listeners else INT_MAX
        limits = (
            (sum(self._by_listener.values()), settings.integer("max.connections"), "max.connections"),
            (sum(self._by_listener.values()), self._descriptors_max, "what `ulimit -n` leaves for connections"),
            (self._by_listener[listener], own, f"max.connections of listener {listener}"),
            (self._by_address[address], per_address, "max.connections.per.ip"),
        )
        return next((f"{why} is {limit}" for count, limit, why in limits if count >= limit), None)

    def _delay_ms(self, kind: str, name: str, limit: float) -> int:
        if limit >= INT_MAX:
            return 0
        if len(self._rates) >= _RATES_MAX:
            self._rates.clear()
        now_ms = self._now_ms()
        rate = self._rates.setdefault((kind, name), Rate(now_ms))
        rate.record(1, now_ms)
        delay_ms = min(WINDOW_MS, rate.throttle_ms(limit, now_ms))
        if delay_ms and kind == "address":
            rate.record(-1, now_ms)
        return delay_ms


def parse_overrides(settings: Settings) -> dict[str, int]:
    """By address: 127.0.0.1:200,... Raises ConfigError."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in settings.text("max.connections.per.ip.overrides").split(","))):
        address, colon, count = part.rpartition(":")
        if not colon or not count.isdecimal():
            raise ConfigError(f"max.connections.per.ip.overrides: {part!r} is not ADDRESS:NUMBER")
        found[address.strip("[]")] = int(count)
    return found
