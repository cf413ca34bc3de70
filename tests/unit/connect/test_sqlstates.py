"""Whose fault an error of PostgreSQL is."""

from __future__ import annotations

import pytest
from psycopg import errors

from oncelog.connect.sqlstates import FAULTS, Fault, fault_of


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.ProgramLimitExceeded, Fault.RECORD),
        (errors.RaiseException, Fault.RECORD),
        (errors.AssertFailure, Fault.RECORD),
        (errors.WithCheckOptionViolation, Fault.RECORD),
        (errors.UniqueViolation, Fault.RECORD),
        (errors.NumericValueOutOfRange, Fault.RECORD),
        (errors.ExternalRoutineException, Fault.RECORD),
        (errors.FunctionExecutedNoReturnStatement, Fault.RECORD),
        (errors.TriggeredDataChangeViolation, Fault.RECORD),
        (errors.DeadlockDetected, Fault.MOMENT),
        (errors.SerializationFailure, Fault.MOMENT),
        (errors.DiskFull, Fault.MOMENT),
        (errors.LockNotAvailable, Fault.MOMENT),
        (errors.QueryCanceled, Fault.MOMENT),
        (errors.AdminShutdown, Fault.MOMENT),
        (errors.ReadOnlySqlTransaction, Fault.MOMENT),
        (errors.IdleInTransactionSessionTimeout, Fault.MOMENT),
        (errors.InsufficientPrivilege, Fault.STATEMENT),
        (errors.UndefinedTable, Fault.STATEMENT),
        (errors.FeatureNotSupported, Fault.STATEMENT),
        (errors.ObjectNotInPrerequisiteState, Fault.STATEMENT),
        (errors.DataCorrupted, Fault.STATEMENT),
        (errors.InFailedSqlTransaction, Fault.STATEMENT),
    ],
)
def test_an_error_is_of_the_record_of_the_moment_or_of_the_statement(
    error: type[errors.DatabaseError], fault: Fault
) -> None:
    assert error.sqlstate is not None
    assert fault_of(error.sqlstate) is fault


def test_a_policy_objects_to_the_row_and_a_missing_privilege_to_all() -> None:
    assert fault_of("42501", "ExecWithCheckOptions") is Fault.RECORD
    assert fault_of("42501", "aclcheck_error") is Fault.STATEMENT


def test_a_code_that_postgresql_does_not_know_is_of_a_function_that_objects() -> None:
    assert fault_of("SH001") is Fault.RECORD


def test_the_table_has_codes_and_classes() -> None:
    assert {len(code) for code in FAULTS} == {2, 5}
