"""Commands print what can be read, name what cannot, and go on if told to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.testing import BrokerProcess
from tests.unit.client.poison import PROBLEMS, READABLE, make_poisoned_topic

Process = Callable[..., "subprocess.CompletedProcess[str]"]
TOPIC = "poisoned"


@pytest.fixture(scope="module")
def poisoned(shared_broker: BrokerProcess) -> TopicPartition:
    return make_poisoned_topic(shared_broker, TOPIC)


@pytest.mark.parametrize("options", [[], ["-F", "{offset} {value}"]], ids=["columns", "records"])
def test_consume_prints_what_comes_before_and_names_the_place(
    process: Process, poisoned: TopicPartition, options: list[str]
) -> None:
    done = process("consume", TOPIC, *options)
    assert done.returncode != 0
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["a", "b"]
    assert f"topic {TOPIC}, partition 0: offsets 2 to 2 cannot be read" in done.stderr


@pytest.mark.parametrize("options", [[], ["-F", "{offset} {value}"], ["--group", "readers"]])
def test_consume_goes_on_if_told_to(process: Process, poisoned: TopicPartition, options: list[str]) -> None:
    done = process("consume", TOPIC, "--skip-corrupt-batches", *options)
    assert done.returncode == 0, done.stderr
    if "--group" not in options:
        assert [line.split()[-1].encode() for line in done.stdout.splitlines()] == READABLE
    for first, after in PROBLEMS:
        assert f"topic {TOPIC}, partition 0: offsets {first} to {after - 1} cannot be read" in done.stderr


@pytest.mark.parametrize("style", ["oncelog", "kafka"])
def test_a_dump_has_what_can_be_read_and_names_what_cannot(
    process: Process, poisoned: TopicPartition, shared_broker: BrokerProcess, style: str
) -> None:
    done = process("log", "dump", str(Path(shared_broker.data_dir) / f"{TOPIC}-0"), "--format", style)
    assert done.returncode == 0, done.stderr
    for value in READABLE:
        assert f"{value.decode()}" in done.stdout
    said = done.stdout + done.stderr
    assert "record 1 of the batch at offset 1 is malformed" in said
    assert "record 0 of the batch at offset 4 is malformed" in said
