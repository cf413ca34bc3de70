"""`oncelog serve`: a broker on this machine."""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog.cli.extras import require_extra
from oncelog.cli.parsing import Choice, NewPath
from oncelog.core.config import Settings

if TYPE_CHECKING:
    from oncelog.cli.secure_start import SecureStart


def _warn_if_secure_before(folder: Path) -> None:
    made = folder.absolute().with_name(f"{folder.name}-secure")  # as `secure_start` names it
    if made.is_dir():
        logging.getLogger("oncelog.server").warning(
            "%s was served with --secure, which is left out now: whoever reaches this broker may do everything", folder
        )


def _secure_start(folder: Path) -> SecureStart:
    require_extra("security", "what makes certificates", "cryptography")
    from oncelog.cli.secure_start import SecureStart

    return SecureStart(folder)


@click.command("serve")
@click.option("--data-dir", type=NewPath(file_okay=False, path_type=Path), help="Data folder.  [default: oncelog-data]")
@click.option("--listen", metavar="HOST:PORT", help="Where to accept clients; port 0 picks a free one.")
@click.option("--advertised-listener", metavar="HOST:PORT", help="The address that clients connect to.")
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A server.properties file with Kafka's keys.")  # fmt: skip
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="A broker setting; may be repeated.")
@click.option("--secure", is_flag=True,
              help="Turn on TLS, a login and ACLs; certificates and a user are made at the first start.")  # fmt: skip
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this port.")
@click.option("--console", "console_listen", is_flag=False, flag_value="127.0.0.1:8080", metavar="[HOST:PORT]",
              help="Show it in a browser, at this address: see 'oncelog console'.  [127.0.0.1:8080]")  # fmt: skip
@click.option("--log-level", default="info", show_default=True,
              type=Choice(["debug", "info", "warning", "error"], case_sensitive=False))  # fmt: skip
@click.option("--log-format", default="text", show_default=True, type=Choice(["text", "json"]))
@click.option("--failpoint", "failpoints", multiple=True, hidden=True)
@click.option("--take-orders", "takes_orders", is_flag=True, hidden=True)
@click.option("--throw-away", "throws_away", is_flag=True, hidden=True)
def serve_command(
    data_dir: Path | None,
    listen: str | None,
    advertised_listener: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    secure: bool,
    metrics_port: int | None,
    console_listen: str | None,
    log_level: str,
    log_format: str,
    failpoints: tuple[str, ...],
    takes_orders: bool,
    throws_away: bool,
) -> None:
    """Run a broker that Kafka clients can use.

    Prints "oncelog ready on HOST:PORT" when it accepts clients, logs to stderr, and stops cleanly on SIGTERM, SIGHUP
    (unless it is ignored, as by nohup) or Ctrl-C.
    """
    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of their time
    from oncelog.core.address import Address
    from oncelog.server import main as server_main
    from oncelog.server.operator_log import set_up_logging
    from oncelog.server.server import NO_USERS

    gc.freeze()  # else the next object has all of them looked at
    gc.enable()
    if console_listen is not None:
        from oncelog.cli.console_process import check_console_address

        check_console_address(console_listen)
    set_up_logging(log_level, log_format)
    start = server_main.Start(
        data_dir, listen, advertised_listener, config_file, assignments, metrics_port, failpoints, throws_away
    )
    try:
        folder, settings = start.prepare()
        secured = _secure_start(folder) if secure else None
        if secured is not None:
            made = server_main.load_settings(None, (), secured.settings(settings))
            settings = Settings(made.table, {**settings.values, **made.values}, pinned=settings.pinned | made.pinned)
        elif not settings.text("authorizer.class.name"):
            _warn_if_secure_before(folder)

        with ExitStack() as children:

            def ready(address: Address) -> None:
                if secured is not None:
                    servers = secured.servers(settings, address)
                    problem = secured.certificate_problem(servers)
                    if problem is not None:
                        logging.getLogger("oncelog.server").warning("clients will refuse this broker: %s", problem)
                    secured.write_client_file(servers)
                    click.echo(secured.instructions(servers))
                click.echo(f"{server_main.READY} {address}")
                sys.stdout.flush()
                if console_listen is not None:
                    from oncelog.cli.console_process import console_process

                    client_file = secured.client_file if secured is not None else None
                    # Idle even if the broker has another address than loopback.
                    children.enter_context(console_process(str(address), console_listen, client_file, priority="idle"))

            users = secured.users if secured is not None else NO_USERS
            server_main.run(folder, settings, ready, users, takes_orders=takes_orders)
    except server_main.FAILURES as error:
        raise click.ClickException(start.sentence(error)) from error
