"""Mutants can be put in, the quick ones are found, and a search that finds nothing says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants.catalogue import (
    CLUSTER_MUTANTS,
    CONNECT_MUTANTS,
    CONTROLLER_MUTANTS,
    COORDINATOR_MUTANTS,
    MUTANTS,
    SERVER_MUTANTS,
    STORAGE_MUTANTS,
)
from tests.mutants.metadata_log_mutants import METADATA_LOG_MUTANTS
from tests.mutants.mutant import Histories, Mutant, histories, suite
from tests.mutants.runner import run

pytestmark = pytest.mark.simulation

QUICK = [mutant for mutant in MUTANTS.values() if mutant.is_quick]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_put_in(mutant: Mutant) -> None:
    """The text that it changes is there, once, and what comes out is a program."""
    compile(mutant.source(), mutant.module, "exec")
    assert mutant.found_by


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_a_quick_mutant_is_found(mutant: Mutant) -> None:
    verdict = run(mutant, mutant.found_by[0])
    assert verdict.is_found, verdict.text


def test_every_mutant_has_a_name_of_its_own() -> None:
    lists = [
        *(CLUSTER_MUTANTS, CONNECT_MUTANTS, CONTROLLER_MUTANTS, COORDINATOR_MUTANTS, METADATA_LOG_MUTANTS),
        *(STORAGE_MUTANTS, SERVER_MUTANTS),
    ]
    assert len(MUTANTS) == sum(map(len, lists))


def test_a_mutant_that_breaks_another_promise_than_expected_counts_as_survived() -> None:
    mutant = MUTANTS["read_committed sees everything"]
    search = mutant.found_by[0]
    assert isinstance(search, Histories)
    verdict = run(mutant, replace(search, promises=frozenset({"producer-ids-unique"})))
    assert not verdict.is_found


@pytest.mark.parametrize(
    "search", [histories(1, theme="calm"), suite("tests/unit/core/test_hashing.py"), suite("tests/no/such/file.py")]
)
def test_a_search_that_finds_nothing_says_so(search: Histories) -> None:
    verdict = run(MUTANTS["producers never expire"], search)
    assert not verdict.is_found, verdict.text


def test_a_mutant_that_makes_a_search_hang_counts_as_survived() -> None:
    connector = CONNECT_MUTANTS[0]  # no history has one, however fast the machine is
    verdict = run(connector, histories(10**6, theme="calm"), seconds_max=1)
    assert not verdict.is_found
    assert "no answer" in verdict.text
