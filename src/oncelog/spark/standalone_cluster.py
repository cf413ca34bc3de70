"""A real standalone Spark cluster on this machine: a master and workers from the PySpark wheel, as processes.

For the demo and for tests of what only happens between processes: executors that are killed, drivers that come back.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from oncelog.child_process import ChildProcess
from oncelog.janitor import janitor
from oncelog.spark.java import use_java

START_TIMEOUT_S = 180.0
DAEMON_MEMORY = "256m"
DAEMON_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY = re.compile(r"Successfully registered with master")


class ClusterError(RuntimeError):
    """A process of the cluster did not start; the text ends with its log."""


class StandaloneCluster:
    """`with StandaloneCluster(folder) as cluster: oncelog.spark.session(master=cluster.master_url, ...)`"""

    def __init__(self, folder: Path, *, workers: int = 2, cores_per_worker: int = 1, memory: str = "1g") -> None:
        self.folder = folder
        self.master_url = ""
        self._workers = workers
        self._cores = cores_per_worker
        self._memory = memory
        self._processes: list[ChildProcess[bytes]] = []

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            self._launch("master", "org.apache.spark.deploy.master.Master", arguments)
            self.master_url = self._await_line("master", _MASTER_READY)[1]
            for number in range(self._workers):
                self._launch_worker(number)
            for number in range(self._workers):
                self._await_line(f"worker-{number}", _WORKER_READY)
        except BaseException:
            self.stop()
            raise
        return self

    def _launch_worker(self, number: int) -> None:
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", str(self._cores)]
        arguments += ["--memory", self._memory, "--work-dir", str(self.folder / f"work-{number}"), self.master_url]
        self._launch(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", arguments)

    def _launch(self, name: str, main_class: str, arguments: list[str]) -> None:
        home = spark_home()
        environment = {
            **os.environ,
            "JAVA_HOME": str(use_java().home),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log(name).open("ab") as log:
            process = ChildProcess[bytes](
                [str(home / "bin" / "spark-class"), main_class, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(process)
        janitor.take("group", process.pid)  # with the executors of a worker

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _await_line(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and all(process.poll() is None for process in self._processes):
            found = pattern.search(self._log(name).read_text(errors="replace"))
            if found is not None:
                return found
            time.sleep(0.1)
        tail = self._log(name).read_text(errors="replace")[-2000:]
        raise ClusterError(f"the Spark {name} did not get ready. Its log ends with:\n{tail}")

    def executor_pids(self) -> list[int]:
        """The executors that run now, as processes of the workers."""
        workers = {process.pid for process in self._processes[1:]}
        listing = subprocess.run(
            ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        found = []
        for line in listing.splitlines():
            pid, parent, command = line.split(None, 2)
            if int(parent) in workers and "CoarseGrainedExecutorBackend" in command:
                found.append(int(pid))
        return found

    def kill_executor(self) -> int | None:
        """kill -9 one executor. Its worker starts another. Returns its pid, None when there is none."""
        pids = self.executor_pids()
        if not pids:
            return None
        os.kill(pids[0], signal.SIGKILL)
        return pids[0]

    def stop(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self._processes):
            process.end_within(10)
            janitor.leave("group", process.pid)
        self._processes.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def spark_home() -> Path:
    """The folder of the installed PySpark, which holds all of Spark."""
    import pyspark

    return Path(pyspark.__file__).parent
