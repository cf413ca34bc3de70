"""`oncelog console`: a cluster in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncelog.cli import parsing
from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.console_process import require_console


@click.command("console")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
              help="A loopback address to serve pages on; port 0 picks a free one.")  # fmt: skip
@click.option("--allow-changes", is_flag=True,
              help="Let pages end transactions and move offsets of groups, after a confirmation.")  # fmt: skip
@click.option("--audit-log", type=click.Path(dir_okay=False, path_type=Path),
              default=Path("oncelog-console-audit.jsonl"), show_default=True,
              help="Where changes are logged, one JSON object a line.")  # fmt: skip
@click.option("--hanging-after", default="15m", show_default=True, metavar="DURATION",
              help="A transaction may be taken for hanging when its producer was silent for so long.")  # fmt: skip
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@cluster_options
def console_command(
    access: ClusterAccess,
    listen: str,
    allow_changes: bool,
    audit_log: Path,
    hanging_after: str,
    until_stdin_ends: bool,
) -> None:
    """Show a cluster in a browser: who holds readers back, transactions as they happen, groups, messages.

    Works on Oncelog, Apache Kafka and compatible clusters. Prints the address of the first page. Pages only show things
    unless --allow-changes is given. It stops cleanly on SIGTERM, SIGHUP or Ctrl-C.
    """
    require_console()
    from oncelog.console.server import bind, run
    from oncelog.console.settings import ConsoleSettings, parse_listen

    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    settings = ConsoleSettings(
        access.client_config(),
        access.command_options(),
        audit_log if allow_changes else None,
        parsing.duration_ms(hanging_after),
    )
    try:
        listener = bind(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {listen}: {error.strerror or error}") from error
    shown_host = f"[{host}]" if ":" in host else host

    def ready() -> None:
        click.echo(f"oncelog console on http://{shown_host}:{listener.getsockname()[1]}/")
        sys.stdout.flush()

    with listener:
        run(settings, listener, ready, sys.stdin.buffer if until_stdin_ends else None)
