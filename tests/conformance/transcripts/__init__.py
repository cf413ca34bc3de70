"""Transcripts of the wire scenarios, recorded from Apache Kafka: see tests/conformance/record.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.conformance.scenario import Transcript

HERE: Final = Path(__file__).resolve().parent


def load(file: str) -> dict[str, dict[int, Transcript]]:
    """Transcripts by scenario and transaction.version."""
    path = HERE / f"{file}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: {version: entry["steps"] for entry in entries for version in entry["transaction_versions"]}
        for name, entries in stored.items()
    }


def save(file: str, transcripts: dict[str, dict[int, Transcript]]) -> None:
    """Write one step per line, and equal transcripts of several versions once."""
    lines = [f"{json.dumps(name)}: [\n{_entries(by_version)}\n]" for name, by_version in sorted(transcripts.items())]
    (HERE / f"{file}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _entries(by_version: dict[int, Transcript]) -> str:
    groups: list[tuple[list[int], Transcript]] = []
    for version, transcript in sorted(by_version.items()):
        for versions, known in groups:
            if known == transcript:
                versions.append(version)
                break
        else:
            groups.append(([version], transcript))
    return ",\n".join(_entry(versions, transcript) for versions, transcript in groups)


def _entry(versions: list[int], transcript: Transcript) -> str:
    steps: list[str] = [json.dumps(step, separators=(", ", ": ")) for step in transcript]
    return f'{{"transaction_versions": {versions}, "steps": [\n' + ",\n".join(steps) + "\n]}"
