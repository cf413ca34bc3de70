"""A console as a child process: pages that decode records must not delay a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from oncelog.cli.extras import require_extra

END_TIMEOUT_S: Final = 10.0


def require_console() -> None:
    require_extra("console", "the web server", "starlette", "uvicorn", "jinja2")


@contextmanager
def console_process(servers: str, listen: str, client_file: Path | None = None) -> Iterator[None]:
    """It ends with the block, and with this process, however that ends: its standard input is closed then."""
    command = [sys.executable, "-m", "oncelog", "console", "-b", servers, "--listen", listen, "--until-stdin-ends"]
    command += [] if client_file is None else ["--config", str(client_file)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
