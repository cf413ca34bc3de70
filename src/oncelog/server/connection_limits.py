"""How many connections there may be, and how fast new ones may come: in all, of a listener, of an address.

One above a number is closed at once. Deviation: above a rate, Kafka leaves new connections in the queue of the system;
here they are accepted, and nothing is read from them for as long. Above the rate of an address they are held and then
closed, as in Kafka.

Clients must not keep the brokers of a cluster from each other. So, as in Kafka, the listener between brokers is not
bound by the number and the rate for all, if there is another one: where there is no room left, the connection of a
client that was silent for longest makes some.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from oncelog.core.config import INT_MAX, ConfigError, Settings
from oncelog.core.named_tuple import NamedTuple
from oncelog.security.acl import normal_host
from oncelog.security.quotas import WINDOW_MS, Rate
from oncelog.server.memory_budget import connections_max

if TYPE_CHECKING:
    from oncelog.security.quotas import QuotaTable

_RATES_MAX: Final = 10_000
_DESCRIPTORS: Final = "what `ulimit -n` leaves for connections"
_BUDGET: Final = "oncelog.connections.max.bytes"


class Admission(NamedTuple):
    refusal: str | None = None
    """Which limit closes it, with its value."""
    delay_ms: int = 0
    """How long it has to wait: for its first answer, or for its end if it is refused."""
    displaces: str | None = None
    """Why a connection of another listener has to go."""


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
        between_brokers: str | None = None,
    ) -> None:
        """`between_brokers` is the name of their listener."""
        self._settings = settings
        self._listeners = listeners
        self._overrides = overrides
        self._descriptors_max = descriptors_max
        self._quotas = quotas
        self._now_ms = now_ms
        self._protected = between_brokers if len(listeners) > 1 else None
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
        displaces = self._all_refusal() if listener == self._protected else None
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        everybody = INT_MAX
        if listener != self._protected:
            everybody = self._settings().integer("max.connection.creation.rate")
        own = self._listeners[listener].rate_max if listener in self._listeners else INT_MAX
        delay_ms = max(self._delay_ms("all", "", everybody), self._delay_ms("listener", listener, own))
        return Admission(None, delay_ms, displaces)

    def forget(self, address: str, listener: str) -> None:
        for counter, key in ((self._by_address, address), (self._by_listener, listener)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def _number_refusal(self, address: str, listener: str) -> str | None:
        settings = self._settings()
        per_address = self._overrides.get(address, settings.integer("max.connections.per.ip"))
        own = self._listeners[listener].connections_max if listener in self._listeners else INT_MAX
        if listener != self._protected:
            in_all = self._all_refusal()
        elif self._by_listener[listener] >= self._descriptors_max:
            in_all = f"{_DESCRIPTORS} is {self._descriptors_max}"
        else:
            in_all = None
        return in_all or _refusal(
            (self._by_listener[listener], own, f"max.connections of listener {listener}"),
            (self._by_address[address], per_address, "max.connections.per.ip"),
        )

    def _all_refusal(self) -> str | None:
        count = sum(self._by_listener.values())
        return _refusal(
            (count, self._settings().integer("max.connections"), "max.connections"),
            (count, self._descriptors_max, _DESCRIPTORS),
            (
                count,
                connections_max(self._settings().integer(_BUDGET)),
                f"the number of connections whose buffers fit into {_BUDGET}",
            ),
        )

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


def _refusal(*limits: tuple[int, int, str]) -> str | None:
    return next((f"{why} is {limit}" for count, limit, why in limits if count >= limit), None)


def parse_overrides(settings: Settings) -> dict[str, int]:
    """By address: 127.0.0.1:200,localhost:200,... Raises ConfigError."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in settings.text("max.connections.per.ip.overrides").split(","))):
        address, colon, count = part.rpartition(":")
        if not colon or not (count.isascii() and count.isdecimal()):
            raise ConfigError(f"max.connections.per.ip.overrides: {part!r} is not ADDRESS:NUMBER")
        found[_address(address.strip().strip("[]"))] = int(count)
    return found


def _address(host: str) -> str:
    """The address as connections have it. Names are looked up once, as in Kafka, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"max.connections.per.ip.overrides: there is no host {host!r} ({error.strerror})") from None
    best = min(found, key=lambda each: each[0] != socket.AF_INET)
    return normal_host(str(best[4][0]))
