"""`oncelog produce` that does not get through says what was written, and nothing that is not so."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from oncelog.client import Admin, NewTopic, Producer, TopicPartition
from oncelog.client.accumulator import Accumulator, WaitingBatch
from oncelog.client.batch_sequence import Delivery
from oncelog.client.deadline import Deadline
from oncelog.client.producer_config import ProducerConfig
from oncelog.testing import BrokerProcess
from tests.unit.cli.conftest import Background, await_text, line_of

Run = Callable[..., Result]


def begin(run: Run, background: Background, *arguments: str) -> subprocess.Popen[str]:
    """A producer in the midst of its transaction `undecided` of two records on the topic `orders`."""
    run("topic", "create", "orders")
    child = background("produce", "orders", "--transactional-id", "undecided", *arguments)
    assert child.stdin is not None
    child.stdin.write("one\ntwo\n")
    child.stdin.flush()
    await_text(lambda: run("txn", "list").stdout, "Ongoing")
    return child


def end_of_input(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.close()


def read_until(child: subprocess.Popen[str], text: str) -> str:
    seen = ""
    while text not in seen:
        line = line_of(child, child.stderr)
        assert line, seen
        seen += line
    return seen


def rest_of(child: subprocess.Popen[str]) -> str:
    assert child.stderr is not None
    text = child.stderr.read()
    child.wait(120)
    return text


def press_ctrl_c(child: subprocess.Popen[str]) -> None:
    """Again after a while, as a person would: Python drops an interruption that meets it in a finalizer."""
    while child.poll() is None:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2)


def test_a_commit_without_an_answer_is_not_called_aborted(
    run: Run, own_broker: BrokerProcess, background: Background
) -> None:
    child = begin(run, background, "--timeout", "5s", "-b", own_broker.bootstrap_servers)
    os.kill(own_broker.pid, signal.SIGSTOP)
    end_of_input(child)
    said = rest_of(child)
    assert child.returncode == 1
    assert "Whether the transaction of 2 records is committed is not known" in said
    assert "aborted" not in said.replace("coordinator aborts it", "")
    assert "nothing was written" not in said
    history = f"oncelog txn history undecided -b {own_broker.bootstrap_servers}"
    assert f"'{history}'" in said
    os.kill(own_broker.pid, signal.SIGCONT)
    await_text(lambda: run(*history.split()[1:]).stdout, "committed")
    assert run("consume", "orders").stdout == "one\ntwo\n"


def test_a_commit_is_asked_for_again_when_its_answer_does_not_come(
    run: Run, own_broker: BrokerProcess, background: Background
) -> None:
    child = begin(run, background, "--timeout", "8s")
    os.kill(own_broker.pid, signal.SIGSTOP)
    end_of_input(child)
    read_until(child, "asking again")
    os.kill(own_broker.pid, signal.SIGCONT)
    assert "2 records to orders" in rest_of(child)
    assert child.returncode == 0
    assert run("consume", "orders").stdout == "one\ntwo\n"


def test_an_interrupted_commit_is_not_called_aborted(
    run: Run, own_broker: BrokerProcess, background: Background
) -> None:
    child = begin(run, background, "--timeout", "8s")
    os.kill(own_broker.pid, signal.SIGSTOP)
    end_of_input(child)
    read_until(child, "asking again")
    press_ctrl_c(child)
    assert "Whether the transaction of 2 records is committed is not known" in rest_of(child)
    assert child.returncode == 130


def test_an_abort_without_an_answer_is_not_called_done(
    run: Run, own_broker: BrokerProcess, background: Background
) -> None:
    child = begin(run, background, "--timeout", "5s")
    os.kill(own_broker.pid, signal.SIGSTOP)
    child.send_signal(signal.SIGTERM)
    said = rest_of(child)
    assert child.returncode == 143
    assert "The transaction of 2 records is not committed, and that it is aborted is not confirmed" in said
    os.kill(own_broker.pid, signal.SIGCONT)
    await_text(lambda: run("txn", "history", "undecided").stdout, "aborted")


def test_a_transaction_that_timed_out_is_not_said_to_be_taken_over(
    run: Run, servers: str, topic: str, background: Background
) -> None:
    transactional_id = f"late-{topic}"
    child = background("produce", topic, "--transactional-id", transactional_id, "--set", "transaction.timeout.ms=500")
    assert child.stdin is not None
    child.stdin.write("one\n")
    child.stdin.flush()
    await_text(lambda: run("txn", "list", "--pattern", transactional_id).stdout, "CompleteAbort")
    end_of_input(child)
    said = rest_of(child)
    assert child.returncode == 1
    assert "it timed out" in said
    assert "taken over" not in said
    assert "The transaction of 1 record is aborted; nothing was written." in said


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_producer_that_is_ended_from_outside_aborts_its_transaction(
    run: Run, servers: str, topic: str, background: Background, number: int, exit_code: int
) -> None:
    transactional_id = f"ended-{topic}"
    child = background("produce", topic, "--transactional-id", transactional_id)
    assert child.stdin is not None
    child.stdin.write("one\ntwo\n")
    child.stdin.flush()
    await_text(lambda: run("txn", "list", "--pattern", transactional_id).stdout, "Ongoing")
    child.send_signal(number)
    assert "The transaction of 2 records is aborted; nothing was written." in rest_of(child)
    assert child.returncode == exit_code
    assert "CompleteAbort" in run("txn", "describe", transactional_id).stdout


def test_records_that_a_broker_refuses_are_not_counted_as_written(
    run: Run, admin: Admin, name: str, background: Background
) -> None:
    admin.create_topics([NewTopic(name, 1, configs={"max.message.bytes": "200"})])
    child = background("produce", name)
    assert child.stdin is not None
    for number in (1, 2):
        child.stdin.write(f"{number}\n")
        child.stdin.flush()
        await_text(lambda: run("consume", name).stdout, f"{number}\n")
    child.stdin.write("x" * 300 + "\n")
    end_of_input(child)
    said = rest_of(child)
    assert child.returncode == 1
    assert "MESSAGE_TOO_LARGE" in said
    assert "2 of 3 records read are written, the other 1 is not." in said
    assert run("consume", name).stdout == "1\n2\n"


def test_columns_that_a_broker_refuses_are_not_counted_as_written(
    run: Run, admin: Admin, name: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(name, 1, configs={"max.message.bytes": "200"})])
    source = tmp_path / "lines"
    source.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 5_000)
    result = run("produce", name, source)
    assert result.exit_code == 1
    assert "Nothing was written." in result.stderr
    assert run("consume", name).stdout == ""


def test_a_topic_that_refuses_everything_has_nothing_written(
    run: Run, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.alter_group_offsets("any", {TopicPartition(topic, 0): 0})
    source = tmp_path / "lines"
    source.write_text("not for you\n")
    result = run("produce", "__consumer_offsets", source)
    assert result.exit_code == 1
    assert "Nothing was written." in result.stderr


def test_records_without_an_answer_are_neither_written_nor_lost(
    run: Run, own_broker: BrokerProcess, background: Background
) -> None:
    run("topic", "create", "orders")
    child = background("produce", "orders", "--timeout", "5s", "-b", own_broker.bootstrap_servers)
    assert child.stdin is not None
    child.stdin.write("one\n")
    child.stdin.flush()
    await_text(lambda: run("consume", "orders").stdout, "one")
    os.kill(own_broker.pid, signal.SIGSTOP)
    child.stdin.write("two\n")
    child.stdin.flush()
    # Nothing tells from outside that the line was read; what is said of it must be right either way.
    child.send_signal(signal.SIGTERM)
    said = rest_of(child)
    assert child.returncode == 143
    assert "What was read before it, 1 record, is written." in said or (
        "1 of 2 records read is acknowledged; it is not known whether the other 1 is written" in said
        and f"'oncelog consume orders --from=-10 -b {own_broker.bootstrap_servers}'" in said
    )


@pytest.mark.parametrize("is_interrupted", [True, False])
@pytest.mark.parametrize("style", [(), ("-H", "a=b")], ids=["columns", "lines"])
def test_what_was_sent_before_the_buffer_was_full_is_counted(
    run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool, style: tuple[str, ...]
) -> None:
    def wait_in_vain(accumulator: Accumulator, _: Deadline) -> None:
        raise KeyboardInterrupt if is_interrupted else accumulator.exhausted()

    def complete_in_place(accumulator: Accumulator, batch: WaitingBatch, outcome: Delivery | BaseException) -> None:
        batch.size_bytes = 0  # else a producer that is slow, on a busy machine, would always find room
        complete(accumulator, batch, outcome)

    complete = Accumulator.complete
    monkeypatch.setattr(Accumulator, "complete", complete_in_place)
    monkeypatch.setattr(Accumulator, "wait_for_room", wait_in_vain)
    source = tmp_path / "lines"
    source.write_text("".join(f"{number:0100}\n" for number in range(40_000)))
    result = run("produce", topic, source, "--set", "buffer.memory=300000", *style)
    there = run("consume", topic).stdout.count("\n")
    assert 0 < there < 40_000
    found = re.search(r"(\d+) of ([\d,]+) records read are (acknowledged|written)(.*)", result.stderr)
    assert found is not None, result.stderr
    acknowledged, read = int(found[1]), int(found[2].replace(",", ""))
    assert acknowledged == there < read
    rest = read - there
    other = f"the other {rest} {'is' if rest == 1 else 'are'}"
    if is_interrupted:
        # Nothing tells whether the record is queued that was being sent.
        assert result.exit_code == 130
        assert found[3] == "acknowledged"
        assert f"it is not known whether {other} written" in found[4]
    else:
        assert result.exit_code == 1
        assert found[3] == "written"
        assert f"{other} not." in found[4]


def test_a_transactional_id_in_a_file_makes_no_transaction(run: Run, topic: str, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("transactional.id=of-another-program\n")
    source = tmp_path / "lines"
    source.write_text("plain\n")
    assert run("produce", topic, source, "--config", config, "-q").exit_code == 0
    assert run("consume", topic).stdout == "plain\n"
    refused = run("produce", topic, source, "--set", "transactional.id=x")
    assert refused.exit_code == 2
    assert "--transactional-id" in refused.stderr


def test_a_timeout_that_is_longer_than_a_record_may_take_holds_for_records_too(
    run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_ms = []

    class Watched(Producer):
        def __init__(self, config: Mapping[str, Any]) -> None:
            super().__init__(config)
            times_ms.append(ProducerConfig.parse(config).delivery_timeout_ms)

    monkeypatch.setattr("oncelog.client.producer.Producer", Watched)
    file = tmp_path / "client.properties"
    file.write_text("delivery.timeout.ms=150000\n")
    for options in (
        ["--timeout", "3m"],
        [],
        ["--config", file],
        ["--timeout", "3m", "--config", file],
        ["--timeout", "3m", "--set", "delivery.timeout.ms=60000"],
    ):
        assert run("produce", topic, os.devnull, *options).exit_code == 0
    assert times_ms == [180_000, 120_000, 150_000, 180_000, 60_000]
