"""A console as a child process: pages that decode records must not delay a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import click

from oncelog.cli.extras import require_extra
from oncelog.core.address import Address

END_TIMEOUT_S: Final = 10.0


def require_console() -> None:
    require_extra("console", "the web server", "starlette", "uvicorn", "jinja2")


def check_console_address(listen: str) -> None:
    """Before a broker starts: its console would end at once, and nobody would look at the log."""
    require_console()
    from oncelog.console.settings import parse_listen
    from oncelog.http_server import bind

    try:
        address = parse_listen(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--console") from None
    try:
        bind(*address).close()
    except OSError as error:
        raise cannot_listen("--console", address, error) from error


def cannot_listen(option: str, address: Address, error: OSError) -> click.ClickException:
    """In the words of the broker, whichever program it is that cannot."""
    from oncelog.server.listener import listen_problem

    return click.ClickException(f"{option}: {listen_problem(address, error)}")


@contextmanager
def console_process(
    servers: str, listen: str, client_file: Path | None = None, *, ready: bool = False, priority: str | None = None
) -> Iterator[None]:
    """It ends with the block, and with this process, however that ends: its standard input is closed then.

    With `ready` the block begins when its address is printed: for those who draw on the terminal from then on. Without
    a `priority` the console finds the one that fits.
    """
    from oncelog.child_process import ChildProcess

    command = [sys.executable, "-m", "oncelog", "console", "-b", servers, "--listen", listen, "--until-stdin-ends"]
    command += [] if priority is None else ["--priority", priority]
    command += [] if client_file is None else ["--config", str(client_file)]
    process = ChildProcess[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if ready else None, text=True)
    try:
        if process.stdout is not None:
            click.echo(process.stdout.readline(), nl=False)  # empty if it has ended, with its reason on stderr
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.end_within(END_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


def console_beside(servers: str, listen: str | None, *, priority: str | None = None) -> AbstractContextManager[None]:
    """A console if an address is given, ready when the block begins."""
    return nullcontext() if listen is None else console_process(servers, listen, ready=True, priority=priority)
