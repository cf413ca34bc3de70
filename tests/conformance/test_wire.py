"""Every wire scenario on both brokers, compared with the transcript that Apache Kafka gave.

Apache Kafka itself is played again too: that keeps the transcripts true, and a scenario that is not deterministic
shows here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import brokers, deviations, scenarios, transcripts
from tests.conformance.conftest import require
from tests.conformance.scenario import Scenario, play

RECORDED = {file: transcripts.load(file) for file in scenarios.FILES}


def is_worth_repeating(file: str, scenario: Scenario, version: int) -> bool:
    """Apache Kafka is not asked again what takes long, nor what it answers alike on an older transaction.version."""
    newest = max(scenario.transaction_versions)
    recorded = RECORDED[file].get(scenario.name, {})
    return not scenario.slow and (version == newest or recorded.get(version) != recorded.get(newest))


def cases() -> Iterator[object]:
    for kind in brokers.KINDS:
        for file, group in scenarios.FILES.items():
            for scenario in group:
                for version in scenario.transaction_versions:
                    if kind == "oncelog" or is_worth_repeating(file, scenario, version):
                        yield pytest.param(
                            kind, file, scenario, version, id=f"{kind}-{file}/{scenario.name}-tv{version}"
                        )


@pytest.mark.parametrize(("kind", "file", "scenario", "version"), list(cases()))
def test_answers_as_apache_kafka_does(kind: str, file: str, scenario: Scenario, version: int) -> None:
    require(kind)
    wanted = RECORDED[file][scenario.name][version]
    if kind == "oncelog":
        wanted = deviations.expected(f"{file}/{scenario.name}", version, wanted, set())
    broker = brokers.get(kind, version, scenario.profile)
    assert play(broker.bootstrap_servers, scenario, broker.sasl_servers) == wanted


def test_every_deviation_applies_somewhere() -> None:
    applied: set[str] = set()
    for file, recorded in RECORDED.items():
        for name, by_version in recorded.items():
            for version, transcript in by_version.items():
                deviations.expected(f"{file}/{name}", version, transcript, applied)
    assert applied == {deviation.reason for deviation in deviations.DEVIATIONS}


def test_every_scenario_is_recorded_and_nothing_else() -> None:
    for file, group in scenarios.FILES.items():
        wanted = {scenario.name: set(scenario.transaction_versions) for scenario in group}
        assert {name: set(by_version) for name, by_version in RECORDED[file].items()} == wanted
        assert len(wanted) == len(group), f"two scenarios of {file} have one name"
