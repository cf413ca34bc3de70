"""Whose fault an error of PostgreSQL is, by its SQLSTATE: pure.

    RECORD     this row is not taken, and will not be next time: a value, a constraint, a limit, a trigger that objects
    MOMENT     another attempt may succeed: connections, locks, resources, a server that goes down or comes up
    STATEMENT  no record will be taken before a person has changed something: privileges, tables, types

A code is looked up as a whole, then by its first two characters, its class. One that PostgreSQL does not know was
raised by a function of the database (`raise ... using errcode`), which then objects to the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from psycopg import errors


class Fault(Enum):
    RECORD = "record"
    MOMENT = "moment"
    STATEMENT = "statement"


FAULTS: Final[Mapping[str, Fault]] = {
    "08": Fault.MOMENT,  # connections
    "09": Fault.RECORD,  # a triggered action
    "20": Fault.RECORD,  # a case of a function that has no branch
    "21": Fault.RECORD,  # a statement that would touch a row twice
    "22": Fault.RECORD,  # values
    "23": Fault.RECORD,  # constraints
    "25006": Fault.MOMENT,  # read only: a standby, or one that is about to be
    "25P03": Fault.MOMENT,  # idle for too long inside of a transaction
    "25P04": Fault.MOMENT,  # a transaction that took too long
    "27": Fault.RECORD,  # a trigger has changed the row
    "28": Fault.MOMENT,  # a role, while somebody changes its password
    "2F": Fault.RECORD,  # functions in SQL
    "38": Fault.RECORD,  # functions in other languages
    "39": Fault.RECORD,
    "40": Fault.MOMENT,  # deadlocks, serialisation
    "44": Fault.RECORD,  # a view with check option
    "53": Fault.MOMENT,  # memory, disk, connections
    "54": Fault.RECORD,  # limits: a row or the entry of an index is too large
    "55006": Fault.MOMENT,  # in use
    "55P03": Fault.MOMENT,  # locked
    "57": Fault.MOMENT,  # cancelled, shut down
    "58": Fault.MOMENT,  # the system around the server
    "72": Fault.MOMENT,  # a snapshot that is too old
    "HV00N": Fault.MOMENT,  # the server behind a foreign table
    "P0": Fault.RECORD,  # raise, assert and strict selects of PL/pgSQL
}
INSUFFICIENT_PRIVILEGE: Final = "42501"
ROW_CHECK: Final = "ExecWithCheckOptions"
"""Where PostgreSQL checks a new row by the policies of a table. Their violation has the code of missing privileges."""


def fault_of(code: str, function: str | None = None) -> Fault:
    """`function` is the one in PostgreSQL's source that raised the error."""
    if code == INSUFFICIENT_PRIVILEGE and function == ROW_CHECK:
        return Fault.RECORD
    known = FAULTS.get(code) or FAULTS.get(code[:2])
    if known is not None:
        return known
    return Fault.STATEMENT if _is_of_postgres(code) else Fault.RECORD


def _is_of_postgres(code: str) -> bool:
    try:
        errors.lookup(code)
    except KeyError:
        return False
    return True
