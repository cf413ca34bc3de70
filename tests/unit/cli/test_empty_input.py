"""Empty names and values, as of a variable of the shell that is not set, are refused and never taken for a default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([""], "there is no command ''"),
        (["serve", "--data-dir", ""], "the name is empty"),
        (["serve", "--console", ""], "is not of the form HOST:PORT"),
        (["serve", "--console", "nonsense"], "is not of the form HOST:PORT"),
        (["serve", "--console", "0.0.0.0:8080"], "is not a loopback address"),
        (["cluster", "up", "--data-dir", ""], "the name is empty"),
        (["cluster", "up", "--console", "nonsense"], "is not of the form HOST:PORT"),
        (["demo", "--console", "nonsense"], "is not of the form HOST:PORT"),
        (["user", "add", "alice", "--data-dir", ""], "the name is empty"),
        (["log", "verify", ""], "the name is empty"),
        (["lab", "fencing", "--keep", ""], "the name is empty"),
        (["cluster", "info", "-b", ""], "no address is given"),
        (["consume", "TOPIC", "--from", ""], "'' is not a time"),
        (["consume", "TOPIC", "--to", ""], "'' is not a time"),
        (["group", "reset-offsets", "", "--topic", "TOPIC", "--to", "latest"], "the name of the group is empty"),
        (["txn", "watch", "--interval", "0s"], "at least 50ms"),
        (["quota", "set", "--user", "alice", "producer_byte_rate=inf"], "'inf' is not a number"),
        (["quota", "set", "--user", "alice", "producer_byte_rate="], "'' is not a number"),
    ],
)
def test_it_is_refused_as_a_wrong_command_line(run: Run, topic: str, arguments: list[str], why: str) -> None:
    result = run(*(topic if argument == "TOPIC" else argument for argument in arguments))
    assert (result.exit_code, why in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("command", ["console", "registry"])
def test_a_certificate_that_is_none_is_refused_before_anything_is_served(
    run: Run, tmp_path: Path, command: str
) -> None:
    nothing = tmp_path / "empty.pem"
    nothing.touch()
    result = run(command, "--listen", "127.0.0.1:0", "--certificate", nothing, "--key", nothing)
    assert (result.exit_code, "cannot be used" in result.stderr, result.stdout) == (2, True, ""), result.stderr


def test_an_id_without_a_name_has_no_history(run: Run) -> None:
    result = run("txn", "history", "")
    assert (result.exit_code, "nothing about ''" in result.stderr or "no __transaction_state" in result.stderr) == (
        1,
        True,
    )
