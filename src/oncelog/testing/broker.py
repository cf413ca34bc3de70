"""A broker as a child process: started, killed, restarted and stopped by the test that owns it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

from oncelog.child_process import ChildProcess
from oncelog.janitor import janitor
from oncelog.testing.launcher import LaunchedProcess, launcher

if TYPE_CHECKING:
    from pathlib import Path

    from oncelog.client.admin import Admin
    from oncelog.testing.waiting import AsyncWaits, Waits

_READY: Final = "oncelog ready on "
ENDING_TIMEOUT_S: Final = 10.0
"""For a broker that failed to start: it has closed its output and is about to exit."""
ORDER_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 90.0
"""For a start and for a stop: seconds on a machine that has time, and a busy one takes longer."""


def setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """As in a properties file. Without `core.config`: its import would take a third of the time of a start."""
    return {name: _text(value) for name, value in settings.items()}


def topic_configs(settings: Mapping[str, object]) -> dict[str, str]:
    """Of keyword arguments, which have _ for the dots of Kafka's names."""
    return {name.replace("_", "."): text for name, text in setting_texts(settings).items()}


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerProcess:
    """`start` waits until clients are accepted; `kill` is kill -9; `start` again goes on with the same folder.

    It does not outlive the process that started it. With `forked` it comes from a process that has imported everything
    already, which takes a fraction of the time. One that `throws_away` its folder does without fsyncs: kills lose
    nothing by that, and nobody looks for the folder after a power cut.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        log_level: str = "info",
        arguments: Sequence[str] = (),
        forked: bool = False,
        throws_away: bool = False,
        config_file: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = port
        self.bootstrap_servers = ""
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self._settings = dict(settings or {})
        self._log_level = log_level
        self._arguments = list(arguments)
        self.throws_away = throws_away
        self._config_file = config_file
        self._forked = forked and sys.platform == "linux"
        self._own_session = forked
        """As a forked one has: Ctrl-C is for the owner, who ends brokers in an order."""
        self._process: ChildProcess[str] | LaunchedProcess | None = None
        self.paused = False

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, timeout_s: float = PATIENCE_S, extra_arguments: Sequence[str] = ()) -> BrokerProcess:
        if self.running:
            raise RuntimeError("the broker is running already")
        arguments = [*self._arguments, *extra_arguments]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as stderr:
            if self._forked and not arguments:
                self._process = launcher.launch(self._what_to_start(), stderr.fileno())
            else:  # the command line, for options that a fork does not know
                command = [*self._command(), *arguments]
                self._process = _spawn(command, stderr, own_session=self._own_session)
        janitor.take("process", self._process.pid)
        self._await_ready(timeout_s)
        return self

    def _what_to_start(self) -> dict[str, object]:
        return {
            "data_dir": str(self.data_dir),
            "listen": f"127.0.0.1:{self.port}",
            "config_file": None if self._config_file is None else str(self._config_file),
            "assignments": [f"{name}={text}" for name, text in setting_texts(self._settings).items()],
            "log_level": self._log_level,
            "throws_away": self.throws_away,
        }

    def _command(self) -> list[str]:
        """The same as a command."""
        start: Any = self._what_to_start()
        command = ["serve", "--take-orders", "--data-dir", start["data_dir"], "--listen", start["listen"]]
        command += ["--log-level", start["log_level"]]
        for assignment in start["assignments"]:
            command += ["--set", assignment]
        if start["config_file"] is not None:
            command += ["--config", start["config_file"]]
        return command + (["--throw-away"] if start["throws_away"] else [])

    def _await_ready(self, timeout_s: float) -> None:
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the broker was not started")
        line = _read_line(process.stdout, timeout_s)
        if line is None or not line.startswith(_READY):
            what = f"did not get ready within {timeout_s:g} s"
            if line is not None:
                code = self._end(signal.SIGTERM, ENDING_TIMEOUT_S)
                what = f"ended with exit code {code} before it was ready"
            self.kill()
            tail = self.log_path.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"the broker {what}. Its log ends with:\n{tail}")
        self.bootstrap_servers = line.removeprefix(_READY).strip()
        self.port = int(self.bootstrap_servers.rpartition(":")[2])

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int:
        """A clean stop. Returns the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """kill -9: nothing is flushed, closed or checkpointed."""
        self._end(signal.SIGKILL, 30)

    def wait_for_exit(self, timeout_s: float) -> int:
        """Waits until the process has ended by itself, as it does at an armed failpoint."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        code = self._process.wait(timeout_s)
        self._release()
        return code

    @property
    def wait(self) -> Waits:
        """Waits for committed offsets, the end of transactions, stable groups, records."""
        from oncelog.testing.waiting import Waits

        return Waits(self.wait_async)

    @property
    def wait_async(self) -> AsyncWaits:
        """The same for coroutines: `await broker.wait_async.records(topic, 1)` lets others run meanwhile."""
        from oncelog.testing.waiting import AsyncWaits

        return AsyncWaits(self._client_settings)

    def admin(self) -> Admin:
        """An admin client of this broker, to be closed: `with broker.admin() as admin`."""
        from oncelog.client.admin import Admin

        return Admin(self._client_settings())

    def _client_settings(self) -> dict[str, object]:
        return {"bootstrap.servers": self.bootstrap_servers}

    def create_topic(self, prefix: str = "topic", partitions: int = 1, **settings: object) -> str:
        """Creates a topic with a name that no other has, and returns it. Settings have _ for the dots of Kafka's."""
        from oncelog.client.admin import NewTopic
        from oncelog.testing.waiting import unique_name

        name = unique_name(prefix)
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, configs=topic_configs(settings))])
        return name

    def reset(self) -> None:
        """As if it had just been started on an empty folder, at the same address: a few milliseconds.

        Topics, records, groups and transactions are gone, and so are connections: clients connect again by themselves.
        """
        self._order("reset")

    def pause(self) -> None:
        """It stands still, as a process that the system does not run: connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def lose_answers(self, request: str, count: int = 1) -> None:
        """Carry out the next requests of this name, such as Produce or EndTxn, and close their connections instead of
        answering: what a client sees when the network fails at the worst moment."""
        self._order(f"lose-answers {request} {count}")

    def fail_appends(self, count: int = 1) -> None:
        """The next writes to logs fail, as on a full disk. Producers get KAFKA_STORAGE_ERROR, and may try again."""
        self._order(f"fail-appends {count}")

    def _signal(self, number: int) -> None:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        self._process.send_signal(number)

    def _order(self, order: str) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the broker is not running")
        process.stdin.write(order + "\n")
        process.stdin.flush()
        answer = _read_line(process.stdout, ORDER_TIMEOUT_S)
        if answer is None or answer.strip() != "done":
            what = "was not obeyed in time" if answer is None else (answer.strip() or "the broker ended")
            raise RuntimeError(f"{order}: {what}. Its log is {self.log_path}")

    def _end(self, signal_number: int, timeout_s: float) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal_number)
            process.send_signal(signal.SIGCONT)  # one that is paused would not notice
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._release()
        return code

    def _release(self) -> None:
        if self._process is not None:
            janitor.leave("process", self._process.pid)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process = None
        self.paused = False


def _spawn(arguments: Sequence[str], stderr: IO[bytes], *, own_session: bool) -> ChildProcess[str]:
    return ChildProcess(
        [sys.executable, "-m", "oncelog", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=own_session,
    )


def _read_line(stream: IO[str], timeout_s: float) -> str | None:
    """The next line; None if none came in time; an empty one at the end of the output."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(timeout_s) else None


@contextmanager
def temporary_folder(prefix: str = "oncelog-") -> Iterator[Path]:
    """A folder that is removed at the end of the block, or when this process is killed inside of it."""
    import shutil  # while the launcher imports a broker
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.gettempdir()).absolute() / f"{prefix}{os.urandom(8).hex()}"
    janitor.take("folder", str(folder))  # before there is one
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # After an error, an interrupt while brokers were stopped among others, the janitor has another look at the end.
    janitor.leave("folder", str(folder))


@contextmanager
def broker(
    settings: Mapping[str, object] | None = None,
    *,
    data_dir: Path | str | None = None,
    port: int = 0,
    log_level: str = "warning",
) -> Iterator[BrokerProcess]:
    """A running broker; its folder is temporary unless one is given.

    `settings` are broker settings under Kafka's names, e.g. {"num.partitions": 4, "transaction.version": 1}.
    """
    launcher.warm_up()  # before all else: its imports are what takes long
    from pathlib import Path

    if data_dir is not None:
        yield from _run(BrokerProcess(Path(data_dir), settings, port=port, log_level=log_level, forked=True))
        return
    with temporary_folder() as folder:
        process = BrokerProcess(
            folder / "data", settings, port=port, log_level=log_level, forked=True, throws_away=True
        )
        yield from _run(process)


def _run(process: BrokerProcess) -> Iterator[BrokerProcess]:
    try:
        yield process.start()
    finally:
        process.stop()
