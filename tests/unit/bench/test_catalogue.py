"""The suite covers what the project promises, with its goals."""

from __future__ import annotations

import re

import pytest

from oncelog.bench import catalogue
from oncelog.bench.cells import CELLS
from oncelog.bench.metric import METRICS
from oncelog.bench.workload import Workload

WORKLOADS = [workload for group in catalogue.FULL for workload in group.workloads]


def test_names_are_unique_and_can_be_typed() -> None:
    names = [workload.name for workload in WORKLOADS] + [group.name for group in catalogue.FULL]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled <= {"groups"}, "a group may be named like its only workload"
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", name) for name in names)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_workload_can_be_run_and_its_goals_are_about_figures_it_has(workload: Workload) -> None:
    assert workload.kind in CELLS
    known = {metric.name for metric in METRICS[workload.kind]}
    assert {goal.metric for goal in workload.goals} <= known


def test_the_goals_of_the_project_are_in_it() -> None:
    goals = {
        (workload.name, goal.metric): (goal.at_least, goal.at_most) for workload in WORKLOADS for goal in workload.goals
    }
    assert goals["produce-100B", "records_per_s"] == (1.0, None)
    assert goals["produce-1KB", "records_per_s"] == (1.0, None)
    assert goals["consume-100B-committed", "records_per_s"] == (0.9, None)
    assert goals["consume-1KB-committed", "records_per_s"] == (0.9, None)
    assert goals["transactions-1", "transactions_per_s"] == (3.0, None)
    assert goals["transactions-1", "commit_p99_ms"] == (None, 0.2)
    assert goals["commit-every-100ms", "lost_percent"] == (None, 3.0)
    assert goals["start", "start_s"] == (None, 0.2)
    assert goals["memory", "memory_mb"] == (None, 0.2)


def test_a_part_is_chosen_by_group_or_by_workload() -> None:
    chosen = catalogue.select(catalogue.FULL, ["consume", "produce-1KB"])
    assert [group.name for group in chosen] == ["produce", "consume"]
    assert [workload.name for workload in chosen[0].workloads] == ["produce-1KB"]
    with pytest.raises(KeyError, match="consum"):
        catalogue.select(catalogue.FULL, ["consum"])


def test_the_quick_look_is_smaller_and_keeps_the_goals() -> None:
    quick = {workload.name: workload for group in catalogue.quick() for workload in group.workloads}
    assert quick["produce-100B"].records < catalogue.find("produce-100B").records
    assert quick["transactions-1"].goals == catalogue.find("transactions-1").goals
    assert len(quick) < len(WORKLOADS) / 3
