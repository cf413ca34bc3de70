"""Quotas at work: what clients use is measured, and whoever is above a quota is silenced for a while (KIP-219).

The answer leaves at once and tells the client for how long it should be silent; meanwhile nothing is read from its
connection, whether it heeds that or not. While there are no quotas, nothing is measured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.api_keys import ApiKey
from oncelog.security.quotas import (
    CONSUMER_BYTES,
    MUTATIONS,
    PRODUCER_BYTES,
    REQUEST_PERCENT,
    WHOLE_WINDOWS,
    WINDOW_MS,
    Entity,
    Limit,
    QuotaTable,
    Rate,
    TokenBucket,
)

if TYPE_CHECKING:
    from oncelog.server.context import RequestContext

FORGOTTEN_AFTER_MS: Final = 3_600_000
MEASURED_MAX: Final = 10_000
"""Most that are measured at a time, of a kind. Where clients choose what they are called, those that were silent for
longest are forgotten before their time."""
_STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""The first versions whose clients understand THROTTLING_QUOTA_EXCEEDED."""
M = TypeVar("M", Rate, TokenBucket)
_Measured = tuple[str, tuple[str | None, str | None]]


class Quotas:
    def __init__(self, entries: Mapping[Entity, Mapping[str, float]], now_ms: Callable[[], int]) -> None:
        self.table = QuotaTable(entries)
        self._now_ms = now_ms
        self._rates: OrderedDict[_Measured, Rate] = OrderedDict()
        self._buckets: OrderedDict[_Measured, TokenBucket] = OrderedDict()
        """Both with the one that was used last at the end."""
        self.are_set = bool(self.table.keys)

    def become(self, entries: Mapping[Entity, Mapping[str, float]]) -> None:
        self.table = QuotaTable(entries)
        self.changed()

    def changed(self) -> None:
        self.table.changed()
        self.are_set = bool(self.table.keys)
        if not self.are_set:
            self._rates.clear()
            self._buckets.clear()

    def forget_idle(self) -> None:
        before_ms = self._now_ms() - FORGOTTEN_AFTER_MS
        _forget(self._rates, before_ms)
        _forget(self._buckets, before_ms)

    def charge_request(self, api_key: int, context: RequestContext, request_bytes: int, spent_s: float) -> None:
        """Charge the bytes of a Produce, and the time that the broker has spent on any request."""
        if api_key == ApiKey.PRODUCE:
            self._charge(PRODUCER_BYTES, context, request_bytes)
        if api_key != ApiKey.WRITE_TXN_MARKERS:
            self._charge(REQUEST_PERCENT, context, spent_s * 100, throttle_ms_max=WINDOW_MS)

    def fetch_max_bytes(self, context: RequestContext) -> int | None:
        """The largest answer to a Fetch: a larger one would exceed the quota at any time. None without a quota."""
        limit = self._limit(CONSUMER_BYTES, context)
        return None if limit is None else int(limit.rate * WHOLE_WINDOWS)

    def charge_fetch(self, context: RequestContext, size_bytes: int) -> bool:
        """Whether the answer may be sent. One that may not leaves no trace in what is measured.

        Deviation: somebody who got nothing for ten seconds gets an answer, however large. In Kafka a batch that is
        larger than the quota of ten seconds is never sent.
        """
        limit = self._limit(CONSUMER_BYTES, context)
        if limit is None or not size_bytes:
            return True
        rate, now_ms = self._rate(CONSUMER_BYTES, limit), self._now_ms()
        is_first = not rate.is_used(now_ms)
        rate.record(size_bytes, now_ms)
        throttle_ms = rate.throttle_ms(limit.rate, now_ms)
        context.throttle_ms = max(context.throttle_ms, throttle_ms)
        if throttle_ms and not is_first:
            rate.record(-size_bytes, now_ms)
            return False
        return True

    def take_mutations(self, context: RequestContext, count: int) -> None:
        """Count partitions that are made or deleted. A client that understands it gets THROTTLING_QUOTA_EXCEEDED."""
        is_strict = context.api_version >= _STRICT_SINCE[ApiKey(context.api_key or 0)]
        limit = self._limit(MUTATIONS, context) if self.are_set else None
        if limit is None:
            return
        key, now_ms = (MUTATIONS, limit.shared_by), self._now_ms()
        bucket = _last_used(self._buckets, key, lambda: TokenBucket(limit.rate, now_ms))
        bucket.fill(limit.rate, now_ms)
        is_refused = is_strict and bucket.is_overdrawn
        if not is_refused:
            bucket.take(count)
        context.throttle_ms = max(context.throttle_ms, bucket.throttle_ms)
        if is_refused:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")

    def _charge(self, key: str, context: RequestContext, amount: float, throttle_ms_max: int | None = None) -> None:
        limit = self._limit(key, context)
        if limit is None:
            return
        rate, now_ms = self._rate(key, limit), self._now_ms()
        rate.record(amount, now_ms)
        throttle_ms = rate.throttle_ms(limit.rate, now_ms)
        if throttle_ms_max is not None:
            throttle_ms = min(throttle_ms, throttle_ms_max)
        context.throttle_ms = max(context.throttle_ms, throttle_ms)

    def _limit(self, key: str, context: RequestContext) -> Limit | None:
        if key not in self.table.keys:
            return None
        return self.table.limit(key, context.peer.principal.partition(":")[2], context.client_id)

    def _rate(self, key: str, limit: Limit) -> Rate:
        return _last_used(self._rates, (key, limit.shared_by), lambda: Rate(self._now_ms()))


def _last_used(measured: OrderedDict[_Measured, M], key: _Measured, new: Callable[[], M]) -> M:
    found = measured.get(key)
    if found is None:
        if len(measured) >= MEASURED_MAX:
            measured.popitem(last=False)
        found = measured[key] = new()
    else:
        measured.move_to_end(key)
    return found


def _forget(measured: OrderedDict[_Measured, M], before_ms: int) -> None:
    while measured and next(iter(measured.values())).used_ms <= before_ms:
        measured.popitem(last=False)
