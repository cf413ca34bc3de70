"""`oncelog console`: a cluster in a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from oncelog.cli import parsing
from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.console_process import cannot_listen, require_console
from oncelog.cli.schema_types import registry_client
from oncelog.core.address import Address

if TYPE_CHECKING:
    from oncelog.console.masks import Mask

NICENESS: Final = 10
PRIORITIES: Final = ("idle", "low", "equal")
"""How a console competes for the processor."""
REGISTRY_TIMEOUT_S: Final = 2.0
"""A page waits for it."""


@click.command("console")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
              help="A loopback address to serve pages on; port 0 picks a free one.")  # fmt: skip
@click.option("--allow-changes", is_flag=True,
              help="Let pages end transactions and move offsets of groups, after a confirmation.")  # fmt: skip
@click.option("--audit-log", type=parsing.NewPath(dir_okay=False, path_type=Path),
              default=Path("oncelog-console-audit.jsonl"), show_default=True,
              help="Where changes are logged, one JSON object a line.")  # fmt: skip
@click.option("--hanging-after", default="15m", show_default=True, metavar="DURATION",
              help="A transaction may be taken for hanging when its producer was silent for so long.")  # fmt: skip
@click.option("--masks", "masks_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Rules in JSON that name what is masked in the records of topics: see docs/console.md.")  # fmt: skip
@click.option("--schema-registry", metavar="URL",
              help="A schema registry, such as http://127.0.0.1:8081, by which values are decoded.")  # fmt: skip
@click.option("--log-in", is_flag=True,
              help="Visitors log in as users of the cluster, and see what its ACLs allow them.")  # fmt: skip
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A PEM file: pages are served with TLS.")  # fmt: skip
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key, a PEM file.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME",
              help="A name of the console in addresses, besides those of loopback; may be repeated.")  # fmt: skip
@click.option("--priority", type=click.Choice(PRIORITIES),
              help="Its share of the processor: what all others leave, a smaller one, an equal one.  [default: "
                   "idle if a bootstrap server is on this machine, else low]")  # fmt: skip
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@cluster_options
def console_command(
    access: ClusterAccess,
    listen: str,
    allow_changes: bool,
    audit_log: Path,
    hanging_after: str,
    masks_file: Path | None,
    schema_registry: str | None,
    log_in: bool,
    certificate: Path | None,
    key: Path | None,
    host_names: tuple[str, ...],
    priority: str | None,
    until_stdin_ends: bool,
) -> None:
    """Show a cluster in a browser: transactions as they happen, which ones hold readers back, groups, messages.

    Works on Oncelog, Apache Kafka and compatible clusters. Prints the address of the first page. Pages only show things
    unless --allow-changes is given. It stops cleanly on SIGTERM, SIGHUP or Ctrl-C.
    """
    require_console()
    from oncelog.console.server import bind, run
    from oncelog.console.settings import ConsoleSettings, parse_listen
    from oncelog.http_server import check_certificate

    try:
        check_certificate(certificate, key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        host, port = parse_listen(listen, is_protected=log_in and certificate is not None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    if host in ("0.0.0.0", "::") and not host_names:
        raise click.UsageError(f"--listen {listen} needs the name that browsers use for this machine: --host-name NAME")
    if allow_changes:
        _check_audit_log(audit_log)
    settings = ConsoleSettings(
        (_without_user(access) if log_in else access).client_config(),
        access.command_options(),
        audit_log if allow_changes else None,
        parsing.duration_ms(hanging_after, "--hanging-after"),
        masks=_masks(masks_file),
        schema_registry=None if schema_registry is None else registry_client(schema_registry, REGISTRY_TIMEOUT_S),
        log_in=log_in,
        host_names=frozenset(name.lower() for name in (host, *host_names)),
        certificate=certificate,
        key=key,
    )
    try:
        listener = bind(host, port)
    except OSError as error:
        raise cannot_listen("--listen", Address(host, port), error) from error

    def ready() -> None:
        scheme = "https" if certificate is not None else "http"
        click.echo(f"oncelog console on {scheme}://{Address(host, listener.getsockname()[1])}/")
        sys.stdout.flush()

    step_back(priority or _fitting_priority(settings.client.addresses))
    with listener:
        run(settings, listener, ready, sys.stdin.buffer if until_stdin_ends else None)


def step_back(priority: str) -> None:
    """On a machine with a broker, pages must not take the processor from it. Before there are threads.

    A low priority is a smaller share. It does not make room at once: Linux lets a program go on for some milliseconds
    when another one wakes up, unless the first one is idle. What is idle may have to wait for long on a machine that
    has no time left, so this is for a console beside a broker.
    """
    if priority == "idle" and sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError as error:  # some sandboxes know no priorities but nice
            click.echo(
                f"The console cannot leave the processor to all others: {error.strerror}. It has a low priority.",
                err=True,
            )
    if priority != "equal":
        os.nice(NICENESS)


def _fitting_priority(servers: Iterable[Address]) -> str:
    return "idle" if any(server.is_loopback for server in servers) else "low"


def _check_audit_log(path: Path) -> None:
    from oncelog.console.audit import AuditLog

    try:
        AuditLog(path).check()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="--audit-log") from None


def _masks(file: Path | None) -> tuple[Mask, ...]:
    from oncelog.console.masks import read_masks

    try:
        return () if file is None else read_masks(file)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--masks") from None


def _without_user(access: ClusterAccess) -> ClusterAccess:
    """For a console whose visitors log in: the settings name a mechanism, and each visitor brings the user."""
    given = {**access.file_settings, **access.settings}
    if not given.get("security.protocol", "").upper().startswith("SASL_"):
        raise click.UsageError("--log-in needs a cluster with SASL: --set security.protocol=SASL_SSL, or in --config")
    for name in ("sasl.username", "sasl.password", "sasl.jaas.config"):
        if name in given:
            raise click.UsageError(f"{name} is not for a console with --log-in: its visitors bring their own")
    # The client checks its settings as a whole; these two are replaced by those of each visitor.
    return replace(access, settings={**access.settings, "sasl.username": "nobody", "sasl.password": "none"})
