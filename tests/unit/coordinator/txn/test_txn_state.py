from __future__ import annotations

import pytest

from oncelog.coordinator.txn.state import (
    COMPLETION_OF,
    NAME_OF,
    PREPARED,
    STATE_NAMED,
    TxnState,
    check_path,
    is_allowed,
)
from oncelog.coordinator.txn.versions import TransactionVersion, version_of_add_partitions, version_of_end_txn
from oncelog.core.invariant import InvariantError

TV0, TV1, TV2 = TransactionVersion

# Columns in the order of the rows; y = allowed, 2 = under TV2 only.
TABLE = """
Empty             y y - 2 - - y -
Ongoing           - y y y - - - y
PrepareCommit     - - - - y - - -
PrepareAbort      - - - - - y - -
CompleteCommit    y y - 2 - - y -
CompleteAbort     y y - 2 - - y -
Dead              - - - - - - - -
PrepareEpochFence - - - y - - - -
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [(STATE_NAMED[name], TxnState(column), cell) for name, *cells in ROWS for column, cell in enumerate(cells)]


@pytest.mark.parametrize("version", list(TransactionVersion))
@pytest.mark.parametrize(("source", "target", "cell"), CELLS)
def test_every_pair_of_states(source: TxnState, target: TxnState, cell: str, version: TransactionVersion) -> None:
    expected = cell == "y" or (cell == "2" and version is TV2)
    assert is_allowed(source, target, version) is expected


def test_a_path_with_a_step_that_is_not_in_the_table_is_a_bug() -> None:
    check_path("tx", (TxnState.ONGOING, TxnState.PREPARE_EPOCH_FENCE, TxnState.PREPARE_ABORT), TV0)
    with pytest.raises(InvariantError, match=r"'tx'.*Ongoing to CompleteCommit"):
        check_path("tx", (TxnState.ONGOING, TxnState.COMPLETE_COMMIT), TV2)


def test_a_decided_transaction_has_one_way_to_end() -> None:
    for state in PREPARED:
        assert [target for target in TxnState if is_allowed(state, target, TV2)] == [COMPLETION_OF[state]]


def test_numbers_on_disk_and_names_of_the_admin_apis() -> None:
    assert {state.value: name for state, name in NAME_OF.items()} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }


def test_the_request_version_tells_which_protocol_the_client_speaks() -> None:
    assert [version_of_end_txn(version) for version in range(6)] == [TV0] * 5 + [TV2]
    assert [version_of_add_partitions(version) for version in range(6)] == [TV0] * 4 + [TV2] * 2
    assert [version.record_version for version in TransactionVersion] == [0, 1, 1]
    assert [version.bumps_epochs for version in TransactionVersion] == [False, False, True]
