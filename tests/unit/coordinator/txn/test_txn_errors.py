"""Which code goes out, by API and version."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.errors import error_for_produce, error_for_txn_offset_commit, error_for_version
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey


@pytest.mark.parametrize(
    ("api", "since", "last"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4, 6),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2, 5),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2, 4),
        (ApiKey.END_TXN, 2, 5),
    ],
)
def test_producer_fenced_is_invalid_producer_epoch_to_older_clients(api: ApiKey, since: int, last: int) -> None:
    codes = [error_for_version(api, version, ErrorCode.PRODUCER_FENCED) for version in range(last + 1)]
    assert codes == [47] * since + [90] * (last + 1 - since)


def test_other_codes_pass() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.PRODUCER_FENCED:
            assert error_for_version(ApiKey.END_TXN, 0, code) is code


def test_txn_offset_commit_learned_of_loading_in_v2() -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [error_for_version(ApiKey.TXN_OFFSET_COMMIT, version, loading) for version in range(4)] == [15, 15, 14, 14]
    assert [error_for_txn_offset_commit(version, loading) for version in range(4)] == [15, 15, 14, 14]


@pytest.mark.parametrize(
    ("code", "v10", "v11", "v12"),
    [
        (0, 0, 0, 0),
        (13, 19, 19, 19),
        (14, 19, 19, 19),
        (15, 19, 19, 19),
        (16, 19, 19, 19),
        (51, 19, 19, 51),
        (90, 47, 47, 47),
        (120, 48, 120, 120),
        (31, 48, 48, 48),
        (49, 49, 49, 49),
        (48, 48, 48, 48),
        (47, 47, 47, 47),
    ],
)
def test_produce(code: int, v10: int, v11: int, v12: int) -> None:
    assert [error_for_produce(version, ErrorCode(code)) for version in (10, 11, 12)] == [v10, v11, v12]


@pytest.mark.parametrize(
    ("code", "v1", "v3", "v4", "v5"),
    [
        (90, 47, 47, 47, 47),
        (120, 48, 48, 120, 120),
        (13, 15, 14, 14, 14),
        (49, 49, 49, 49, 49),
        (51, 51, 51, 51, 51),
        (16, 16, 16, 16, 16),
    ],
)
def test_txn_offset_commit(code: int, v1: int, v3: int, v4: int, v5: int) -> None:
    assert [error_for_txn_offset_commit(version, ErrorCode(code)) for version in (1, 3, 4, 5)] == [v1, v3, v4, v5]
