"""A finding of a check, and the report that collects findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

FINDINGS_PER_CHECK_MAX: Final = 20
"""How many findings of one kind in one file are kept. Further ones are only counted."""


class Severity(Enum):
    ERROR = "error"
    """Data is lost, or readers get wrong data."""
    WARNING = "warning"
    """Something differs from what a broker writes; it repairs it, or it does no harm."""
    NOTE = "note"
    """Worth knowing, and no damage."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    check: str
    """A short name that scripts can rely on."""
    path: Path
    what: str
    at_start: str
    """What a broker does about it when it starts."""
    offset: int | None = None
    position: int | None = None

    def as_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "severity": self.severity.value,
            "check": self.check,
            "file": str(self.path),
            "what": self.what,
            "at_start": self.at_start,
        }
        if self.offset is not None:
            row["offset"] = self.offset
        if self.position is not None:
            row["position"] = self.position
        return row


@dataclass(slots=True)
class Report:
    findings: list[Finding] = field(default_factory=list)
    counted: Counter[tuple[Path, str]] = field(default_factory=Counter)
    partitions: int = 0
    files: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    reading: Path | None = None
    """The file that is being read."""
    whole: Report | None = None
    """The report that shows it too, if this one is a part that may be thrown away."""

    def begin_log(self, path: Path) -> None:
        self.files += 1
        self.size_bytes += path.stat().st_size
        self.reading = path
        if self.whole is not None:
            self.whole.reading = path

    def error(self, check: str, path: Path, what: str, at_start: str, **place: int | None) -> None:
        self.add(Finding(Severity.ERROR, check, path, what, at_start, **place))

    def warning(self, check: str, path: Path, what: str, at_start: str, **place: int | None) -> None:
        self.add(Finding(Severity.WARNING, check, path, what, at_start, **place))

    def note(self, check: str, path: Path, what: str, at_start: str, **place: int | None) -> None:
        self.add(Finding(Severity.NOTE, check, path, what, at_start, **place))

    def add(self, finding: Finding) -> None:
        key = (finding.path, finding.check)
        self.counted[key] += 1
        if self.counted[key] <= FINDINGS_PER_CHECK_MAX:
            self.findings.append(finding)

    def merge(self, other: Report) -> None:
        """Take over all that another report says."""
        self.findings += other.findings
        self.counted += other.counted
        self.partitions += other.partitions
        self.files += other.files
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes

    def leave_out(self, paths: Set[Path]) -> None:
        """Say nothing about these files."""
        self.findings = [finding for finding in self.findings if finding.path not in paths]
        self.counted = Counter({key: count for key, count in self.counted.items() if key[0] not in paths})

    @property
    def is_clean(self) -> bool:
        """No errors and no warnings."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def hidden(self) -> dict[tuple[Path, str], int]:
        """How many findings of a kind were counted and not kept."""
        return {
            key: count - FINDINGS_PER_CHECK_MAX for key, count in self.counted.items() if count > FINDINGS_PER_CHECK_MAX
        }
