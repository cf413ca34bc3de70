"""`oncelog serve` as a person meets it: in a terminal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from oncelog.client import Admin, ClientConfig, Producer
from oncelog.cluster.journal import format_line
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.ids import CLUSTER_METADATA_TOPIC
from peers.kafka.kafka import free_port

IN_USE = "is in use by another process; stop it, or use another port (0 picks a free one)"


def serve(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "oncelog", "serve", "--data-dir", str(tmp_path / "data"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_one_ready_line_and_a_clean_end_on_a_signal(tmp_path: Path, stop_signal: signal.Signals) -> None:
    process = serve(tmp_path, "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("oncelog ready on 127.0.0.1:")
    process.send_signal(stop_signal)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert json.loads((tmp_path / "data" / ".kafka_cleanshutdown").read_text())["version"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how signals are handled")
def test_a_hang_up_that_is_ignored_stays_so(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "oncelog",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--listen",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("oncelog ready on")
    status = dict(line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert int(status["SigIgn"], 16) & 1 << (signal.SIGHUP - 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "nowhere"], "not of the form HOST:PORT"),
        (["--listen", "SSL://127.0.0.1:1"], "ssl.keystore.location: a listener with TLS needs"),
        (["--set", "num.partitions"], "expected KEY=VALUE"),
        (["--set", "=3"], "expected KEY=VALUE"),
        (["--set", "num.partitons=3"], "did you mean num.partitions?"),
        (["--set", "num.partitions=none"], "must be a whole number"),
        (["--config", "/does/not/exist"], "does not exist"),
        (["--set", "zookeeper.connect=127.0.0.1:2181/a"], "Run a controller with process.roles=controller"),
    ],
)
def test_a_mistake_is_explained_in_one_line_without_a_traceback(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    process = serve(tmp_path, *arguments)
    _, err = process.communicate(timeout=180)
    assert process.returncode != 0
    assert complaint in err
    assert "Traceback" not in err


def test_an_address_in_use_is_explained_and_the_folder_stays_as_it_was(tmp_path: Path) -> None:
    first = serve(tmp_path / "a", "--listen", "127.0.0.1:0")
    assert first.stdout is not None
    address = first.stdout.readline().removeprefix("oncelog ready on ").strip()
    second = serve(tmp_path / "b", "--listen", address)
    _, err = second.communicate(timeout=180)
    first.terminate()
    first.communicate(timeout=180)
    assert second.returncode == 1
    assert f"Error: listeners: {address} {IN_USE}\n" in err
    assert "Traceback" not in err
    assert not (tmp_path / "b" / "data").exists()


@pytest.mark.parametrize("option", ["--console", "--metrics-port"])
def test_a_further_port_in_use_is_explained_and_no_broker_starts(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        value = address if option == "--console" else address.rpartition(":")[2]
        process = serve(tmp_path, "--listen", "127.0.0.1:0", option, value)
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (1, "")
    assert f"{address} {IN_USE}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_cannot_be_is_said_to_be_out_of_range(tmp_path: Path, port: str) -> None:
    process = serve(tmp_path, "--listen", f"127.0.0.1:{port}")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert f"the port of '127.0.0.1:{port}' is out of range: ports are 0 to 65535" in err


_AS_NOBODY = """
import encodings.idna, os, sys
import oncelog.cli.main, oncelog.cli.serve
from oncelog.testing.forking import _import_handlers, _import_server
_import_server()  # what nobody may not read
_import_handlers()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.chdir("/")
oncelog.cli.main.main()
"""


def test_a_folder_that_may_not_be_written_to_is_explained() -> None:
    folder = tempfile.mkdtemp(prefix="oncelog-test-")  # nobody may not enter that of pytest
    try:
        Path(folder).chmod(0o555)
        arguments = ["serve", "--data-dir", f"{folder}/data", "--listen", "127.0.0.1:0"]
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, *arguments], capture_output=True, text=True, timeout=180
        )
    finally:
        Path(folder).rmdir()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Error: {folder}/data cannot be used as a data folder: this user may not write there; " in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_from_a_kafka_properties_file_with_json_logs_and_metrics(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "server.properties"
    config.write_text("num.network.threads=3\nnum.partitions=5\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    process = serve(tmp_path, "--config", str(config), "--metrics-port", str(port), "--log-format", "json")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("oncelog ready")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    process.terminate()
    _, err = process.communicate(timeout=180)
    assert "kafka_server_connection_count 0.0" in text
    entries = [json.loads(line) for line in err.splitlines()]
    assert entries[0]["level"] == "warning"
    assert entries[0]["message"].startswith("num.network.threads has no effect in Oncelog: one thread serves")


@pytest.mark.parametrize(("setting", "file_mode"), [(None, 0o600), ("027", 0o640)])
def test_data_are_for_their_owner_alone_unless_a_setting_opens_them(
    tmp_path: Path, setting: str | None, file_mode: int
) -> None:
    arguments = [] if setting is None else ["--set", f"oncelog.umask={setting}"]
    process = serve(tmp_path, "--listen", "127.0.0.1:0", *arguments)
    assert process.stdout is not None
    servers = process.stdout.readline().split()[-1]
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin, Producer({"bootstrap.servers": servers}) as producer:
        admin.create_topics(["t"])
        producer.send("t", b"x").result(30)
    process.terminate()
    process.communicate(timeout=180)
    found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert any(path.suffix == ".log" for path in found)
    folder_mode = file_mode | (0o100 if setting is None else 0o110)
    for path in found:
        expected = folder_mode if path.is_dir() else file_mode
        if path.name == JOURNAL_FILE:
            expected = 0o600  # it has a secret
        elif path.name == f"{CLUSTER_METADATA_TOPIC}-0":
            expected = 0o700  # it has the keys of users
        assert path.stat().st_mode & 0o777 == expected, path


def test_a_umask_that_is_none_is_refused(tmp_path: Path) -> None:
    process = serve(tmp_path, "--set", "oncelog.umask=9")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "must be three octal digits" in err


@pytest.mark.parametrize("command", [["serve", "--listen", "127.0.0.1:0"], ["config", "show", "broker", "1"]])
def test_a_folder_of_a_newer_version_is_refused_in_one_line(tmp_path: Path, command: list[str]) -> None:
    started = serve(tmp_path, "--listen", "127.0.0.1:0")
    assert started.stdout is not None
    assert started.stdout.readline().startswith("oncelog ready on")
    started.terminate()
    started.communicate(timeout=180)
    journal = tmp_path / "data" / JOURNAL_FILE
    journal.write_bytes(format_line({"kind": "of a later day"}))
    arguments = [sys.executable, "-m", "oncelog", *command, "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "'of a later day', which this version does not know: a newer Oncelog" in done.stderr
    assert "Traceback" not in done.stderr
