"""Results as a table for people: one row per workload, the first cluster as the measure of the others."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from oncelog.bench.runner import Result


def show(results: list[Result]) -> None:
    clusters = list(dict.fromkeys(result.cluster for result in results))
    workloads = list(dict.fromkeys(result.workload for result in results))
    table = Table(title="medians over all rounds")
    table.add_column("workload")
    for cluster in clusters:
        table.add_column(cluster, justify="right")
    for other in clusters[1:]:
        table.add_column(f"{clusters[0]} / {other}", justify="right")
    by_key = {(result.cluster, result.workload): result for result in results}
    for workload in workloads:
        row = [by_key[cluster, workload] for cluster in clusters]
        ratios = [_ratio(row[0], other) for other in row[1:]]
        table.add_row(workload.name, *[_cell(result) for result in row], *ratios)
    console = Console()
    console.print(table)
    for result in results:
        if result.problem:
            console.print(f"{result.cluster}, {result.workload.name}: {result.problem}")


def _cell(result: Result) -> str:
    if result.problem:
        return "failed"
    rate = result.records_per_s
    if result.workload.kind == "transactions":
        return f"{rate:,.0f}/s  p50 {result.percentile_ms(50):.2f} ms  p99 {result.percentile_ms(99):.2f} ms"
    return f"{rate:,.0f}/s  {rate * result.workload.size_bytes / 1e6:,.0f} MB/s"


def _ratio(first: Result, other: Result) -> str:
    """No ratio when a side failed: a benchmark must not be able to lie."""
    if first.problem or other.problem or not other.records_per_s:
        return "-"
    return f"{first.records_per_s / other.records_per_s:.2f}x"
