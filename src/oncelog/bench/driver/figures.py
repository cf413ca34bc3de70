"""Figures that several drivers derive."""

from __future__ import annotations

from oncelog.bench.measurement import Distribution


def percentile_figures(name: str, distribution: Distribution) -> dict[str, float]:
    if not distribution.count:
        return {}
    return {
        f"{name}_p50_ms": distribution.at(50.0),
        f"{name}_p99_ms": distribution.at(99.0),
        f"{name}_p999_ms": distribution.at(99.9),
    }
