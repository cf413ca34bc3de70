"""Reading records and headers for those who wait for an answer."""

from __future__ import annotations

from oncelog.client.admin import Admin
from oncelog.client.fetcher import RANGE_FETCH_BYTES, RangeReader
from oncelog.client.visibility import IsolationLevel


def reader_of(
    admin: Admin,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    fetch_bytes: int = RANGE_FETCH_BYTES,
    check_crcs: bool = False,
) -> RangeReader:
    """On the connections of a client. It gives up when that client's own questions would: polls and pages wait."""
    patience_ms = admin.config.default_api_timeout_ms
    return RangeReader(
        admin, isolation=isolation, fetch_bytes=fetch_bytes, check_crcs=check_crcs, idle_timeout_ms=patience_ms
    )
