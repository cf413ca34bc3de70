"""Files and folders that commands are given: in other encodings, and where nothing can be written."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.unit.cli.conftest import Background

Run = Callable[..., Result]


def test_a_properties_file_in_latin_1_is_read(run: Run, servers: str, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_bytes(f"# Gr\xfc\xdfe\nclient.id=b\xfcro\nbootstrap.servers={servers}\n".encode("latin-1"))
    assert run("topic", "list", "--config", config).exit_code == 0


def test_a_broker_reads_a_properties_file_in_latin_1_and_stops_at_a_hang_up(
    background: Background, tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_bytes("# Gr\xfc\xdfe\nnum.partitions=3\n".encode("latin-1"))
    child = background("serve", "--config", config, "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("oncelog ready on ")
    child.send_signal(signal.SIGHUP)
    assert child.wait(180) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_folder_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for command in (["lab", "filter", "--keep", str(blocked / "kept")], ["serve", "--data-dir", str(blocked / "data")]):
        done = subprocess.run([sys.executable, "-m", "oncelog", *command], capture_output=True, text=True, timeout=180)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert str(blocked) in done.stderr
