"""The states of a transactional id, and the one table of transitions between them.

Theory of operation
-------------------
A transactional id is always in one durable state, the one in its last committed record of `__transaction_state`.
A transition has two halves. First an operation *decides*: it checks the request, looks the transition up in
`TRANSITIONS`, computes the complete new value and marks the id as *pending*. Then, when the record with that value is
committed, `replay` *applies* it and the id is no longer pending. A request that meets a pending id in between gets
CONCURRENT_TRANSACTIONS, because the decision in flight may change what the right answer is.

    Empty ------------- add partition ------------> Ongoing
    Ongoing ----------- EndTxn commit ------------> PrepareCommit -- all markers written --> CompleteCommit
    Ongoing ----------- EndTxn abort -------------> PrepareAbort --- all markers written --> CompleteAbort
    Ongoing ----------- timeout, InitProducerId --> (PrepareEpochFence) --> PrepareAbort
    Empty, Complete* -- EndTxn abort, TV2 --------> PrepareAbort
    Empty, Complete* -- InitProducerId -----------> Empty
    Empty, Complete* -- add partition ------------> Ongoing
    Empty, Complete* -- idle for too long --------> (Dead), the id is forgotten

The committed Prepare* record is the decision of the transaction: from there on it can only end one way, whatever
crashes. Once it is applied, the id is pending for Complete* while the markers are written to its partitions.

Two states never reach the log. PrepareEpochFence is passed within one operation: a fencing abort moves from Ongoing
through it to PrepareAbort, and only the latter is recorded. Dead is what an id is pending for while its tombstone is
in flight; applied, the id is gone.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import Final

from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.invariant import invariant


class TxnState(IntEnum):
    """The numbers are those of `TransactionStatus` on disk."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


_E, _O, _PC, _PA = TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT
_CC, _CA, _D, _F = TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT, TxnState.DEAD, TxnState.PREPARE_EPOCH_FENCE

TRANSITIONS: Final[dict[TxnState, frozenset[TxnState]]] = {
    _E: frozenset({_E, _O, _PA, _D}),
    _O: frozenset({_O, _PC, _PA, _F}),
    _PC: frozenset({_CC}),
    _PA: frozenset({_CA}),
    _CC: frozenset({_E, _O, _PA, _D}),
    _CA: frozenset({_E, _O, _PA, _D}),
    _F: frozenset({_PA}),
    _D: frozenset(),
}
"""Allowed targets by source."""

EPOCH_BUMP_ONLY: Final = frozenset({(_E, _PA), (_CC, _PA), (_CA, _PA)})
"""The abort of a transaction that never began: only where every EndTxn bumps the epoch (TV2) does it mean anything."""

PREPARED: Final = frozenset({_PC, _PA})
COMPLETED: Final = frozenset({_CC, _CA})
AT_REST: Final = frozenset({_E, _CC, _CA})
"""No transaction is open: the id may be initialised again, begin, or expire."""
NEVER_LOGGED: Final = frozenset({_D, _F})

COMPLETION_OF: Final[dict[TxnState, TxnState]] = {_PC: _CC, _PA: _CA}

NAME_OF: Final[dict[TxnState, str]] = {
    _E: "Empty",
    _O: "Ongoing",
    _PC: "PrepareCommit",
    _PA: "PrepareAbort",
    _CC: "CompleteCommit",
    _CA: "CompleteAbort",
    _D: "Dead",
    _F: "PrepareEpochFence",
}
"""The names of the states in the admin APIs."""

STATE_NAMED: Final[dict[str, TxnState]] = {name: state for state, name in NAME_OF.items()}


def is_allowed(source: TxnState, target: TxnState, version: TransactionVersion) -> bool:
    if target not in TRANSITIONS[source]:
        return False
    return version.bumps_epochs or (source, target) not in EPOCH_BUMP_ONLY


def check_path(transactional_id: str, path: tuple[TxnState, ...], version: TransactionVersion) -> None:
    """Every step of the path must be in the table; if one is not, the operation that decided it has a bug."""
    for source, target in pairwise(path):
        invariant(
            is_allowed(source, target, version),
            "transactional id %r: the transition from %s to %s is not in the table",
            transactional_id,
            NAME_OF[source],
            NAME_OF[target],
        )
