"""One Apache Kafka node (broker and controller in one process, or one of them) on 127.0.0.1, for comparison.

    with KafkaServer(folder, transaction_version=2) as kafka:
        ... kafka.bootstrap_servers ...

The folder is formatted at the first start with a fixed cluster id. A stopped or killed server starts again on the same
folder and the same ports, so clients find it again. Processes are ended by their process id only.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from oncelog.janitor import janitor
from oncelog.testing.zookeeper import free_ports
from peers.kafka.jars import (
    QUICK_OPTIONS,
    WRITE_CLASSES,
    cache_dir,
    class_archive,
    jars,
    java_command,
    kafka_available,
    locked,
    run_java,
    uses_class_archive,
)

__all__ = ["CLUSTER_ID", "KafkaServer", "cache_dir", "free_port", "jars", "java_command", "kafka_available", "run_java"]

CLUSTER_ID: Final = "b25jZWxvZy1wZWVyLTAwMQ"
READY_TIMEOUT_S: Final = 420.0
STOP_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_EXIT_TERMINATED: Final = 128 + signal.SIGTERM


def free_port() -> int:
    return free_ports(1)[0]


def answers_kafka(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka broker at this address answers ApiVersions v0 by now."""
    body = struct.pack(">hhi", 18, 0, 1) + struct.pack(">h", -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class KafkaServer:
    """Apache Kafka on one folder. `data_dir` is Kafka's `log.dirs`; settings and output lie beside it."""

    def __init__(
        self,
        folder: Path,
        *,
        transaction_version: int = 2,
        features: Mapping[str, int] | None = None,
        node_id: int = 1,
        roles: str = "broker,controller",
        controller: str | None = None,
        controller_port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        java_options: Sequence[str] = QUICK_OPTIONS,
        more_listeners: Mapping[str, int] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """`more_listeners` are ports by security protocol, beside the one without security. `users` are passwords for
        SCRAM-SHA-256 by name, which the folder is formatted with.

        `controller` is the address of another node's, for one that is a broker alone. `controller_port` is that of
        this node's own, if it must be a certain one.
        """
        self.folder = folder
        self._node_id = node_id
        self._roles = roles
        self._controller = controller
        self.data_dir = folder / "data"
        self.transaction_version = transaction_version
        self._features = {"transaction.version": transaction_version, **(features or {})}
        self.port = free_port()
        self._controller_port = controller_port or free_port()
        self._extra = dict(properties or {})
        self._listeners = {"PLAINTEXT": self.port, **(more_listeners or {})}
        self._users = dict(users or {})
        self._heap = heap
        self._java_options = tuple(java_options)
        self._process: subprocess.Popen[bytes] | None = None
        self.voters = ""
        """Of several controllers: all of them, `ID@HOST:PORT`, separated by commas; before the first start."""

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def controller_address(self) -> str:
        return self._controller or f"127.0.0.1:{self._controller_port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"Apache Kafka on {self.folder} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output_file(self) -> Path:
        return self.folder / "kafka.out"

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    def _settings(self) -> dict[str, str]:
        listeners = {
            "broker": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._listeners.items()),
            "controller": f"CONTROLLER://127.0.0.1:{self._controller_port}",
        }
        roles = self._roles.split(",")
        return {
            "process.roles": self._roles,
            "node.id": str(self._node_id),
            "controller.quorum.bootstrap.servers": self.controller_address,
            "listeners": ",".join(listeners[role] for role in roles),
            "advertised.listeners": listeners[roles[0]],
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in self._listeners)]
            ),
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A node that is alone hears its own heartbeats late on a busy machine, and would fence itself. One that is
            # killed waits for so long when it starts again, unless it has a shorter session.
            **({"broker.session.timeout.ms": "60000"} if self._roles == "broker,controller" else {}),
            **({"controller.quorum.voters": self.voters} if self.voters else {}),
            **self._extra,
        }

    @property
    def voter(self) -> str:
        return f"{self._node_id}@127.0.0.1:{self._controller_port}"

    def format(self) -> None:
        """Write the settings; format the folder unless it is formatted already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings_file.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        if (self.data_dir / "meta.properties").exists():
            return
        features = [word for name, level in self._features.items() for word in ("--feature", f"{name}={level}")]
        users = [f"SCRAM-SHA-256=[name={name},password={password}]" for name, password in self._users.items()]
        run = run_java(
            "kafka.tools.StorageTool",
            *("format", "-t", CLUSTER_ID, "-c", str(self._settings_file)),
            *(["--standalone"] if self._controller is None and not self.voters else []),
            *(features if self._controller is None else []),
            *(word for user in users for word in ("--add-scram", user)),
        )
        if run.returncode != 0:
            raise RuntimeError(f"formatting {self.data_dir} failed:\n{run.stdout}{run.stderr}")

    def start(self) -> Self:
        if self._process is not None:
            raise RuntimeError(f"Apache Kafka on {self.folder} runs already, pid {self.pid}")
        if uses_class_archive(self._java_options):
            make_class_archive()
        self.format()
        command = java_command(
            "kafka.Kafka", str(self._settings_file), heap=self._heap, options=self._java_options, log_level="warn"
        )
        with self.output_file.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        janitor.take("process", self._process.pid)
        self._wait_until_ready()
        return self

    def _wait_until_ready(self) -> None:
        process = self._process
        deadline = time.monotonic() + READY_TIMEOUT_S
        while process is not None and process.poll() is None:
            if answers_kafka("127.0.0.1", self.port if "broker" in self._roles else self._controller_port):
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        self.kill()
        tail = self.output_file.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"Apache Kafka on {self.folder} was not ready within {READY_TIMEOUT_S:.0f} s:\n{tail}")

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.kill(process.pid, signal_number)
            os.kill(process.pid, signal.SIGCONT)  # one that is paused would not notice
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        janitor.leave("process", process.pid)

    def stop(self) -> None:
        """A clean stop: the marker `.kafka_cleanshutdown` is written and index files are trimmed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It stands still, as a process that the system does not run."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def make_class_archive() -> None:
    """Once for each JVM: a broker is ready with half the CPU time then, and tools with two thirds of it.

    An empty file says that this JVM makes none.
    """
    archive = class_archive()
    if archive.exists():
        return
    with locked(archive.with_suffix(".lock")), tempfile.TemporaryDirectory(prefix="oncelog-kafka-classes-") as folder:
        if archive.exists():
            return
        new = Path(folder) / archive.name
        server = KafkaServer(Path(folder) / "kafka", java_options=(*QUICK_OPTIONS, f"{WRITE_CLASSES}{new}"))
        process = server.start()._process
        server.stop()
        if process is None or process.returncode != _EXIT_TERMINATED or not new.exists():
            archive.touch()
            return
        beside = archive.with_suffix(".new")
        shutil.copyfile(new, beside)
        beside.rename(archive)
