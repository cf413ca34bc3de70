"""Medians, ratios and goals; and no ratio where a side cannot be trusted."""

from __future__ import annotations

import pytest

from oncelog.bench.comparison import curves, row, rows
from oncelog.bench.measurement import Measurement
from oncelog.bench.metric import RATE, metric
from oncelog.bench.render.text import row_verdict
from oncelog.bench.results import Entry, Results
from oncelog.bench.workload import Goal, Workload

EVEN = (Goal("records_per_s", at_least=1.0),)


def rounds_of(*rates: float, name: str = "records_per_s", lost: int = 0) -> list[Measurement]:
    return [Measurement({name: rate, "mb_per_s": 1.0}, expected=10, arrived=10 - lost) for rate in rates]


def results_of(ours: list[Measurement], other: list[Measurement], goals: tuple[Goal, ...] = EVEN) -> Results:
    entry = Entry("g", "G", Workload("w", "produce", "w", 10, goals=goals), {"ours": ours, "other": other})
    return Results({"ours": "", "other": ""}, {}, "", {"w": entry})


def rate_row(results: Results):  # type: ignore[no-untyped-def]
    return row(results, results.entries["w"], RATE)


def test_the_ratio_is_that_of_the_medians() -> None:
    made = rate_row(results_of(rounds_of(10, 30, 20), rounds_of(10, 10, 99)))
    assert made.ratio == 2.0
    assert made.is_met is True
    assert (made.figures["ours"].low, made.figures["ours"].high) == (10, 30)


def test_one_lost_record_in_one_round_leaves_no_ratio_at_all() -> None:
    for ours, other in ((0, 1), (1, 0)):
        results = results_of(
            rounds_of(10, 30) + rounds_of(20, lost=ours), rounds_of(10, 10) + rounds_of(10, lost=other)
        )
        assert all(made.ratio is None for made in rows(results))
        assert rate_row(results).is_met is None


def test_a_goal_that_some_rounds_meet_and_others_miss_is_close() -> None:
    clear = rate_row(results_of(rounds_of(20, 30, 25), rounds_of(10, 10, 10)))
    assert not clear.is_close and clear.ratios == (2.0, 3.0, 2.5) and clear.round_count == 3
    close = rate_row(results_of(rounds_of(20, 9, 25), rounds_of(10, 10, 10)))
    assert close.is_close and close.is_met is True
    assert row_verdict(close) == "met, close"


def test_a_side_with_fewer_rounds_has_no_ratio() -> None:
    assert rate_row(results_of(rounds_of(10, 10), rounds_of(10))).ratio is None


def test_a_side_that_was_not_measured_has_no_ratio() -> None:
    assert rate_row(results_of(rounds_of(10), [])).ratio is None


def test_a_round_without_the_figure_is_not_left_out_of_the_median_in_silence() -> None:
    assert rate_row(results_of([*rounds_of(10), Measurement({"mb_per_s": 1.0})], rounds_of(10))).ratio is None


def test_goals_may_be_ceilings_and_values() -> None:
    low = Workload("w", "commit-cost", "w", goals=(Goal("lost_percent", at_most=3.0, of="value"),))
    for lost, is_met in ((2.9, True), (3.1, False), (-1.0, True)):
        entry = Entry("g", "G", low, {"ours": rounds_of(lost, name="lost_percent"), "other": rounds_of(1.0)})
        results = Results({"ours": "", "other": ""}, {}, "", {"w": entry})
        made = row(results, entry, metric("commit-cost", "lost_percent"))
        assert made.ratio is None, "a ratio of percentages says nothing"
        assert made.is_met is is_met
    assert Goal("x", at_most=0.2).is_met(0.2) and not Goal("x", at_most=0.2).is_met(0.21)


@pytest.mark.parametrize(
    ("seconds", "exponent", "is_met"), [((1, 1, 1), 0.0, True), ((1, 1, 10), 1.0, True), ((1, 1, 40), 1.602, False)]
)
def test_growth_is_judged_at_the_large_end(seconds: tuple[float, ...], exponent: float, is_met: bool) -> None:
    entries = {}
    for x, value in zip((10, 100, 1000), seconds, strict=True):
        workload = Workload(f"recovery-{x}", "recovery", str(x), curve="MB of log", x=x)
        entries[workload.name] = Entry("recovery", "R", workload, {"ours": rounds_of(value, name="recovery_s")})
    (curve,) = curves(Results({"ours": ""}, {}, "", entries))
    assert curve.exponent == pytest.approx(exponent, abs=0.001)
    assert curve.is_met is is_met


def test_a_curve_without_its_largest_point_is_not_judged() -> None:
    entries = {}
    for x, lost in ((10, 0), (100, 0), (1000, 1)):
        workload = Workload(f"recovery-{x}", "recovery", str(x), curve="MB of log", x=x)
        rounds = rounds_of(1.0, name="recovery_s", lost=lost)
        entries[workload.name] = Entry("recovery", "R", workload, {"ours": rounds})
    (curve,) = curves(Results({"ours": ""}, {}, "", entries))
    assert len(curve.points) == 2 and curve.exponent is None and curve.is_met is None
