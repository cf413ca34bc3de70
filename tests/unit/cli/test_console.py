"""`oncelog console` as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.console_process import console_beside
from oncelog.cli.main import cli
from tests.unit.cli.conftest import heed_signals
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("given", "words"),
    [('[{"topics": "t", "feilds": ["a"]}]', "unknown part 'feilds'"), ("no json", "cannot be read as JSON")],
)
def test_a_file_of_masks_that_is_not_understood_is_refused(tmp_path: Path, given: str, words: str) -> None:
    file = tmp_path / "masks.json"
    file.write_text(given)
    done = CliRunner().invoke(cli, ["console", "--listen", "127.0.0.1:0", "--masks", str(file)])
    assert (done.exit_code, words in " ".join(done.output.split())) == (2, True), done.output


def test_an_address_that_is_no_registry_is_refused() -> None:
    done = CliRunner().invoke(cli, ["console", "--listen", "127.0.0.1:0", "--schema-registry", "nowhere"])
    assert (done.exit_code, "is no address of a registry" in done.output) == (2, True), done.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_names_its_address_serves_without_a_cluster_and_ends_at_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "oncelog", "console", "-b", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    command += ["--priority", "equal"]  # an idle one may wait for minutes on a busy machine
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("oncelog console on http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(line.split()[-1], timeout=60)
        assert answer.value.code == 503
        process.send_signal(number)
        _, errors = process.communicate(timeout=180)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_what_is_drawn_beside_it_begins_when_its_address_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with console_beside("127.0.0.1:1", "127.0.0.1:0", priority="equal"):
        assert capsys.readouterr().out.startswith("oncelog console on http://127.0.0.1:")


def test_a_console_beside_spark_is_not_idle() -> None:
    """All processors are busy for minutes: its pages would not be seen before the end."""
    before = set(children_of(os.getpid()))
    with console_beside("127.0.0.1:1", "127.0.0.1:0", priority="low"):
        assert policies_of([child for child in children_of(os.getpid()) if child not in before]) == {os.SCHED_OTHER}


def is_served(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:  # also no answer: what is idle may have to wait for long
        return False


def hurry(pids: list[int]) -> None:
    """They do not leave the processor to others any more, as far as we may say so: on a busy machine they would take
    minutes to end."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def policies_of(pids: list[int]) -> set[int]:
    """By which all threads of some processes are scheduled."""
    threads = [int(thread.name) for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return {os.sched_getscheduler(thread) for thread in threads}


def stepped_back(call: str) -> list[str]:
    """By how much a process is nicer after a call of the module, and whether it is idle then."""
    code = (
        "import os; from oncelog.cli import console; before = os.nice(0); "
        f"{call}; print(os.nice(0) - before, os.sched_getscheduler(0) == os.SCHED_IDLE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [*done.stdout.split(), *done.stderr.splitlines()]


def nicer_by(niceness: int) -> str:
    """A test run at a low priority has less room to step back: the lowest is 19."""
    return str(min(niceness, 19 - os.nice(0)))


@pytest.mark.parametrize(
    ("priority", "niceness", "is_idle"), [("low", 10, False), ("idle", 10, True), ("equal", 0, False)]
)
def test_a_console_steps_back_as_far_as_it_is_told(priority: str, niceness: int, is_idle: bool) -> None:
    assert stepped_back(f"console.step_back({priority!r})") == [nicer_by(niceness), str(is_idle)]


def test_a_console_that_may_not_be_idle_says_so_and_has_a_low_priority() -> None:
    refuse = "def refuse(*given): raise PermissionError(1, 'Operation not permitted')"
    call = f"exec({refuse!r}); os.sched_setscheduler = refuse; console.step_back('idle')"
    assert stepped_back(call) == [
        nicer_by(10),
        "False",
        "The console cannot leave the processor to all others: Operation not permitted. It has a low priority.",
    ]


@pytest.mark.parametrize(
    ("servers", "options", "is_idle"),
    [
        ("127.0.0.1:1", (), True),
        ("192.0.2.7:9092,localhost:1", (), True),
        ("[::1]:1", (), True),
        ("192.0.2.7:9092", (), False),
        ("127.0.0.1:1", ("--priority", "low"), False),
        ("192.0.2.7:9092", ("--priority", "idle"), True),
    ],
)
def test_a_console_by_itself_is_idle_beside_a_broker_on_this_machine(
    servers: str, options: tuple[str, ...], is_idle: bool
) -> None:
    command = [sys.executable, "-m", "oncelog", "console", "-b", servers, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("oncelog console on ")
        assert policies_of([process.pid]) == {os.SCHED_IDLE if is_idle else os.SCHED_OTHER}
    finally:
        hurry([process.pid])
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_can_bring_its_console_which_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--console=127.0.0.1:0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("oncelog ready on ")
        line = process.stdout.readline()
        assert line.startswith("oncelog console on ")
        address = line.split()[-1]
        wait_until(lambda: is_served(address), timeout_s=400)
        assert policies_of(children_of(process.pid)) == {os.SCHED_IDLE}, "the broker comes first, whatever pages do"
        assert policies_of([process.pid]) == {os.SCHED_OTHER}
        hurry(children_of(process.pid))
        process.send_signal(number)
        # Both have ended when nobody holds the standard output any more.
        process.communicate(timeout=300)
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address, timeout=60)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:8080"), "not a loopback address"),
        (("--listen", "nonsense"), "is not of the form HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "out of range: ports are 0 to 65535"),
        (("--hanging-after", "soon"), "is not a duration"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(cli, ["console", *options])
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_address_in_use_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["console", "--listen", address])
    assert result.exit_code == 1
    assert f"--listen: {address} is in use by another process; stop it, or use another port" in result.stderr
