"""Quotas as Kafka has them: who they are for, what they limit, and for how long somebody above one has to be silent.

An entity is a user, a client id, both, or an address; None as a name stands for every one that has no quota of its own.
The first of these that has a quota counts, and whoever it is for share one measurement:

    user and client id; user, any client id; user; any user, client id; any user, any client id; any user;
    client id; any client id

A rate is measured over ten whole seconds and the one that runs. Who is above it has to wait until it is reached again.
"""

from __future__ import annotations

import ipaddress
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from oncelog.core.config import INT_MAX, LONG_MAX
from oncelog.core.named_tuple import NamedTuple
from oncelog.security.acl import normal_host

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCER_BYTES: Final = "producer_byte_rate"
CONSUMER_BYTES: Final = "consumer_byte_rate"
REQUEST_PERCENT: Final = "request_percentage"
MUTATIONS: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"
_OF_CLIENTS: Final = (PRODUCER_BYTES, CONSUMER_BYTES, REQUEST_PERCENT, MUTATIONS)
_WHOLE: Final = {PRODUCER_BYTES: LONG_MAX, CONSUMER_BYTES: LONG_MAX, CONNECTIONS: INT_MAX}
"""Whole numbers, and how large they may be."""

WINDOWS: Final = 11
WINDOW_MS: Final = 1000
WHOLE_WINDOWS: Final = WINDOWS - 1

Entity = tuple[tuple[str, str | None], ...]
"""Types with names, in the order of the types."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part[0]))


def entity_problem(parts: Iterable[tuple[str, str | None]]) -> str | None:
    """What is wrong with an entity that somebody gives a quota."""
    given = list(parts)
    kinds = [kind for kind, _ in given]
    if not kinds:
        return "Invalid empty client quota entity"
    if len(set(kinds)) < len(kinds):
        return "A type of entity is given twice"
    for kind, name in given:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in kinds:
        if len(kinds) > 1:
            return "Invalid empty client quota entity: an ip stands alone"
        name = given[0][1]
        if name is not None and not _is_address(name):
            return f"{name} is not a valid IP"
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def quota_problem(entity: Entity, key: str, value: float | None) -> str | None:
    """What is wrong with a quota; without a value it is to be removed."""
    known = (CONNECTIONS,) if entity[0][0] == IP else _OF_CLIENTS
    if key not in known:
        return f"Invalid configuration key {key}"
    if value is None:
        return None
    if not math.isfinite(value) or value <= 0:
        return f"Quota {key} must be greater than 0"
    if key in _WHOLE and abs(value - round(value)) > 1e-6:
        return f"Quota {key} must be a whole number"
    if value > _WHOLE.get(key, value):
        return f"Quota {key} must be at most {_WHOLE[key]}"
    return None


class Limit(NamedTuple):
    rate: float
    shared_by: tuple[str | None, str | None]
    """User and client id, as far as the quota tells them apart; a digest of a name that is long."""


class QuotaTable:
    """`entries` is looked at again after `changed`."""

    def __init__(self, entries: Mapping[Entity, Mapping[str, float]]) -> None:
        self._entries = entries
        self._found: dict[tuple[str, str, str], Limit | None] = {}
        self._addresses: dict[str | None, float] = {}
        self.keys: frozenset[str] = frozenset()
        self.changed()

    def changed(self) -> None:
        self._found.clear()
        self.keys = frozenset(key for quotas in self._entries.values() for key in quotas)
        self._addresses = {
            None if name is None else normal_host(name): quotas[CONNECTIONS]
            for ((kind, name), *_), quotas in self._entries.items()
            if kind == IP and CONNECTIONS in quotas
        }

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        asked = (key, user, client_id)
        if len(user) + len(client_id) > NAME_CHARS_MAX:
            return self._look_up(*asked)
        if asked not in self._found:
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            self._found[asked] = self._look_up(*asked)
        return self._found[asked]

    def limit_of_address(self, address: str) -> float | None:
        """An address of IPv6 is the same in each way to write it."""
        return self._addresses.get(normal_host(address), self._addresses.get(None))

    def _look_up(self, key: str, user: str, client_id: str) -> Limit | None:
        users, clients = _short(user), _short(client_id)
        for user_name in (user, None):
            for client_name in (client_id, None):
                rate = self._rate(key, ((CLIENT_ID, client_name), (USER, user_name)))
                if rate is not None:
                    return Limit(rate, (users, clients))
            rate = self._rate(key, ((USER, user_name),))
            if rate is not None:
                return Limit(rate, (users, None))
        for client_name in (client_id, None):
            rate = self._rate(key, ((CLIENT_ID, client_name),))
            if rate is not None:
                return Limit(rate, (None, clients))
        return None

    def _rate(self, key: str, entity: Entity) -> float | None:
        return self._entries.get(entity, {}).get(key)


def _short(name: str) -> str:
    """The name, or a hash of a long one: clients choose names, and they are kept for an hour."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    import hashlib  # nearly all names are shorter

    return hashlib.sha256(name.encode()).hexdigest()


_REMEMBERED_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 256


class Rate:
    """What somebody used per second, in the last seconds."""

    __slots__ = ("_samples", "used_ms")

    def __init__(self, now_ms: int) -> None:
        self._samples: deque[list[float]] = deque()
        """Each the start of a window in milliseconds, and what was used in it."""
        self.used_ms = now_ms

    def record(self, amount: float, now_ms: int) -> None:
        self.used_ms = now_ms
        self._drop_old(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= WINDOW_MS:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += amount

    def is_used(self, now_ms: int) -> bool:
        self._drop_old(now_ms)
        return any(amount for _, amount in self._samples)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until the rate is the limit again; 0 if it is not above it."""
        self._drop_old(now_ms)
        if not self._samples:
            return 0
        elapsed_ms = now_ms - self._samples[0][0]
        # The rate of somebody who has just begun is not that of the first milliseconds.
        whole = int(elapsed_ms // WINDOW_MS)
        window_ms = elapsed_ms + max(0, WHOLE_WINDOWS - whole) * WINDOW_MS
        rate = sum(amount for _, amount in self._samples) * 1000 / window_ms
        return min(INT_MAX, math.ceil((rate - limit) / limit * window_ms)) if rate > limit else 0

    def _drop_old(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] >= WINDOWS * WINDOW_MS:
            self._samples.popleft()


class TokenBucket:
    """Allows a rate of changes. Unused ones are saved up for some seconds, and one request may overdraw."""

    __slots__ = ("_filled_ms", "_rate", "_tokens", "used_ms")

    def __init__(self, rate: float, now_ms: int) -> None:
        self._rate = rate
        self._tokens = rate * WINDOWS
        self._filled_ms = self.used_ms = now_ms

    def fill(self, rate: float, now_ms: int) -> None:
        self._rate, self.used_ms = rate, now_ms
        self._tokens = min(rate * WINDOWS, self._tokens + rate * (now_ms - self._filled_ms) / 1000)
        self._filled_ms = now_ms

    @property
    def is_overdrawn(self) -> bool:
        return self._tokens < 0

    def take(self, amount: float) -> None:
        self._tokens -= amount

    @property
    def throttle_ms(self) -> int:
        return min(INT_MAX, math.ceil(-self._tokens * 1000 / self._rate)) if self.is_overdrawn else 0
