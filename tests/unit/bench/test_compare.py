"""`make bench`: both sides where Apache Kafka can be had, and a loud word where it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from oncelog.bench import suite
from oncelog.bench.results import Results
from oncelog.cli.bench.broker import EmbeddedBroker
from peers import compare
from peers.clients.catalogue import EVERYTHING
from peers.kafka import jars


@pytest.fixture
def without_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "kafka_missing", lambda: "there is no working `java` on PATH")


def test_both_sides_are_ours_to_start_and_oncelog_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "kafka_missing", lambda: None)
    measured, remarks = compare.sides()
    assert [side.name for side in measured] == ["oncelog", "kafka"]
    assert all(side.is_ours for side in measured) and remarks == []


def test_both_sides_remove_deleted_files_at_once(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    broker.start()
    try:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        settings = admin.describe_configs([resource])[resource].result(30)
        assert settings["log.segment.delete.delay.ms"].value == "0"
    finally:
        broker.stop()
    assert compare.SETTINGS["log.segment.delete.delay.ms"] == "0"


@pytest.mark.usefixtures("without_kafka")
def test_without_apache_kafka_it_says_so_and_measures_oncelog_alone(capsys: pytest.CaptureFixture[str]) -> None:
    measured, remarks = compare.sides()
    assert [side.name for side in measured] == ["oncelog"]
    assert "APACHE KAFKA IS NOT MEASURED" in remarks[0] and "no working `java`" in remarks[0]
    assert remarks[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "words", "tries"),
    [
        (
            subprocess.CompletedProcess([], 1, "\n[ERROR] no route to the repository\n[ERROR] more", ""),
            "no route",
            jars.FETCH_TRIES,
        ),
        (subprocess.TimeoutExpired("mvn", 600), "timed out after 600 seconds", 1),
    ],
    ids=["fails", "hangs"],
)
def test_maven_that_fails_is_said_loudly(
    failure: object, words: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def run(command: list[str], **_: object) -> object:
        calls.append(command)
        if isinstance(failure, Exception):
            raise failure
        return failure

    monkeypatch.setenv("ONCELOG_PEERS_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "java_major_version", lambda: jars.JAVA_MIN)
    monkeypatch.setattr(jars.shutil, "which", lambda name: name)
    monkeypatch.setattr(jars.subprocess, "run", run)
    monkeypatch.setattr(jars, "FETCH_PAUSE_S", 0)
    measured, remarks = compare.sides()
    assert [side.name for side in measured] == ["oncelog"] and len(calls) == tries
    assert remarks[0].startswith("APACHE KAFKA IS NOT MEASURED") and words in remarks[0]


@pytest.mark.usefixtures("without_kafka")
def test_the_remark_reaches_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def run(choice: suite.Choice, sides: object, folder: Path, progress: object, remarks: object) -> Results:
        given.extend([choice, remarks])
        return Results({"oncelog": ""}, {"cores": 1, "memory_gb": 1, "system": "s", "python": "3"}, "today")

    monkeypatch.setattr(suite, "run", run)
    assert compare.main(["--quick", "--only", "start,memory", "--results", str(tmp_path)]) == 0
    assert given[0] == suite.Choice(True, ("start", "memory"), None, catalogue=EVERYTHING)
    assert "APACHE KAFKA IS NOT MEASURED" in str(given[1])


def test_names_that_do_not_exist_are_refused_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--only", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        compare.main(["--rounds", "0"])


def test_a_report_can_be_written_again_only_from_results(tmp_path: Path) -> None:
    assert compare.main(["--render", "--results", str(tmp_path)]) == 1


def test_classes_are_taken_from_an_archive_in_short_lived_java_processes_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is measured starts as it does with anybody; and the process that writes an archive reads none."""
    monkeypatch.setattr(jars, "jars", lambda: tmp_path)

    def reads_archive(*options: str) -> bool:
        return f"-XX:SharedArchiveFile={jars.class_archive()}" in jars.java_command("Main", options=options)

    assert not reads_archive(*jars.QUICK_OPTIONS)
    jars.class_archive().touch()
    assert not reads_archive(*jars.QUICK_OPTIONS), "this JVM makes none"
    jars.class_archive().write_bytes(b"classes")
    assert reads_archive(*jars.QUICK_OPTIONS, "-Dmore=true")
    assert not reads_archive(*jars.QUICK_OPTIONS, f"{jars.WRITE_CLASSES}elsewhere")
    assert not reads_archive("-server")
