"""The example programs as people start them: what each does is shown on both brokers, in `tests/conformance`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.client import Producer
from tests.unit.client.reading import Reading

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted(path.stem for path in (ROOT / "examples" / "client").glob("[a-z]*.py"))


def start(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"examples.client.{program}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_arguments_says_which_it_takes(program: str) -> None:
    done = start(program)
    assert (done.returncode, done.stderr.startswith("usage: ")) == (2, True), done.stderr
    assert "HOST:PORT" in done.stderr


def test_values_that_are_not_utf8_are_shown_and_not_a_traceback(servers: str, topic: str) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in (b"caf\xe9", None, "café".encode()):
            producer.send(topic, value, partition=0)
    done = start("read_committed_reader", servers, topic)
    assert (done.stdout, done.stderr) == ("caf\\xe9\n(none)\ncafé\n", "")


def test_any_bytes_are_transformed(servers: str, topic: str) -> None:
    from examples.client import consume_transform_produce, read_committed_reader

    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send(topic, b"caf\xe9", partition=0)
    target = f"{topic}-out"
    consume_transform_produce.run(servers, topic, target, topic, group=topic, until=lambda processed: processed >= 1)
    assert read_committed_reader.run(servers, target) == [b"CAF\xe9"]


def test_what_is_new_is_copied_once_by_many_processes(servers: str, topic: str, reading: Reading) -> None:
    copied = f"{topic}-copy"
    for values in (["a", "b", "c"], ["d"]):
        with Producer({"bootstrap.servers": servers}) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value, key="k", partition=number % 2)
        done = start("shared_transaction", servers, topic, copied)
        assert (done.stdout, done.stderr) == (f"records copied: {len(values)}\n", "")
    assert reading.values(copied) == reading.values(topic) == [b"a", b"c", b"d", b"b"]
