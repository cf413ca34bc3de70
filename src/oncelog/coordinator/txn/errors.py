"""Which error code goes out: by the request's version, by the API that asked, by what the append said."""

from __future__ import annotations

from typing import Final

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey

_PRODUCER_FENCED_SINCE: Final[dict[int, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
_TXN_OFFSET_COMMIT_KNOWS_LOADING_SINCE: Final = 2
_TXN_OFFSET_COMMIT_KNOWS_ABORTABLE_SINCE: Final = 4
_PRODUCE_KNOWS_ABORTABLE_SINCE: Final = 11
_PRODUCE_ADDS_PARTITIONS_SINCE: Final = 12


def error_for_version(api_key: int, version: int, code: ErrorCode) -> ErrorCode:
    """The code an older client understands in place of one that came later."""
    if code is ErrorCode.PRODUCER_FENCED and version < _PRODUCER_FENCED_SINCE.get(api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if (
        code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        and api_key == ApiKey.TXN_OFFSET_COMMIT
        and version < _TXN_OFFSET_COMMIT_KNOWS_LOADING_SINCE
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def error_for_produce(version: int, code: ErrorCode) -> ErrorCode:
    """What a Produce answers when the coordinator refused to add or verify its partition."""
    match code:
        case (
            ErrorCode.NETWORK_EXCEPTION
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
        ):
            # Retriable for every producer, and unlike the codes of the coordinator without a metadata refresh.
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return code if version >= _PRODUCE_ADDS_PARTITIONS_SINCE else ErrorCode.NOT_ENOUGH_REPLICAS
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE:
            return code if version >= _PRODUCE_KNOWS_ABORTABLE_SINCE else ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ErrorCode.INVALID_TXN_STATE
        case _:
            return code


def error_for_txn_offset_commit(version: int, code: ErrorCode) -> ErrorCode:
    """What a TxnOffsetCommit answers when the transaction coordinator refused to add or verify its partition."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            mapped = ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < _TXN_OFFSET_COMMIT_KNOWS_ABORTABLE_SINCE:
            mapped = ErrorCode.INVALID_TXN_STATE
        case ErrorCode.NETWORK_EXCEPTION:
            mapped = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case _:
            mapped = code
    return error_for_version(ApiKey.TXN_OFFSET_COMMIT, version, mapped)
