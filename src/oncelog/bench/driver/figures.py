"""Figures that several drivers derive."""

from __future__ import annotations

from typing import Final

from oncelog.bench.measurement import Distribution

PERCENTILES: Final = {"p50": (50.0, 1), "p99": (99.0, 100), "p999": (99.9, 1000)}
"""The percentile, and the samples without which it would be nothing but the largest of them."""


def percentile_figures(name: str, distribution: Distribution) -> dict[str, float]:
    return {
        f"{name}_{short}_ms": distribution.at(percent)
        for short, (percent, needed) in PERCENTILES.items()
        if distribution.count >= needed
    }
