"""Java clients of Apache Kafka driven from Python, one command at a time: see TxnClient.java for the commands."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from peers.kafka.jars import HERE, QUICK_OPTIONS, java_command

PROGRAM: Final = HERE.parent / "java" / "TxnClient.java"
ANSWER_TIMEOUT_S: Final = 300.0


class JavaClient:
    """A process that holds Java producers, consumers and an admin client on one broker."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        settings: Path | None = None,
        stderr: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`settings` is a file with properties that all of them have, `options` are those of the virtual machine."""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stderr: IO[bytes] | None = stderr.open("ab") if stderr is not None else None
        self._process = subprocess.Popen(
            java_command(
                PROGRAM,
                *(bootstrap_servers, *([] if settings is None else [str(settings)])),
                options=(*QUICK_OPTIONS, *options),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr or subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def run(self, command: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Send one command and wait for its answer, whether it succeeded or not."""
        if self._process.stdin is None:
            raise RuntimeError("the Java client has no stdin")
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._lines.get(timeout=timeout_s)
        if line is None:
            raise RuntimeError(f"the Java client ended with {self._process.wait()} at: {command}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ok(self, command: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """As `run`, for a command that must succeed."""
        answer = self.run(command, timeout_s=timeout_s)
        if not answer["ok"]:
            raise RuntimeError(f"{command}: {answer['exception']}: {answer['message']}")
        return answer

    def kill(self) -> None:
        """End the process at once, leaving its transactions open and its group members silent."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._stderr is not None:
            self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
