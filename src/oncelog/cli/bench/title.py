"""Titles of runs: what a workload does, and its settings that are not the default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from oncelog.bench.workload import Workload

_DIFFERENCES: Final[dict[str, Callable[[Any], str]]] = {
    "partitions": lambda count: f"{count:,} partitions",
    "acks": lambda acks: f"acks={acks}",
    "compression": str,
    "batch_bytes": lambda size: f"batches of {size:,} B",
    "aborted_percent": lambda percent: f"{percent} % of the transactions aborted",
}
_PLAIN: Final = Workload("plain", "plain", "plain")


def titled(workload: Workload) -> Workload:
    found = [
        describe(value)
        for name, describe in _DIFFERENCES.items()
        if (value := getattr(workload, name)) != getattr(_PLAIN, name)
    ]
    if workload.kind == "produce":
        found += _producing_differences(workload)
    found += [f"{name}={value}" for name, value in workload.shown_settings]
    return replace(workload, title=", ".join([workload.title, *found]))


def _producing_differences(workload: Workload) -> list[str]:
    """What only this kind of workload is asked for; elsewhere it is part of what is measured."""
    found = []
    if workload.linger_ms != _PLAIN.linger_ms:
        found.append(f"linger {workload.linger_ms:g} ms")
    if workload.rate_per_s:
        found.append(f"{workload.rate_per_s:,} records/s offered")
    if workload.acks == "all" and not workload.idempotence:
        found.append("not idempotent")
    return found
