"""`oncelog registry`: schemas under ids, for serializers that speak to Confluent's registry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog.cli import progress
from oncelog.cli.cluster_access import ClusterAccess, cluster_options
from oncelog.cli.console_process import cannot_listen
from oncelog.cli.extras import require_extra
from oncelog.core.address import Address, parse_address

if TYPE_CHECKING:
    from oncelog.registry.store import Store


@click.command("registry")
@click.option("--listen", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT",
              help="The address to serve; port 0 picks a free one. Beyond this machine it needs --users, --certificate "
                   "and --key.")  # fmt: skip
@click.option("--topic", default="_schemas", show_default=True, help="The topic that keeps the schemas.")
@click.option("--users", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Who may use it: a line NAME:PASSWORD for each user.")  # fmt: skip
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A PEM file: it is served with TLS.")  # fmt: skip
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key, a PEM file.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME",
              help="A name of the registry in addresses, besides those of loopback; may be repeated.")  # fmt: skip
@cluster_options
def registry_command(
    access: ClusterAccess,
    listen: str,
    topic: str,
    users: Path | None,
    certificate: Path | None,
    key: Path | None,
    host_names: tuple[str, ...],
) -> None:
    """Serve a schema registry, which keeps its schemas in a topic.

    Serializers for Confluent's registry use it as they are: Avro, JSON Schema and Protobuf. Several may serve one
    topic; an id is never given twice. It works on Oncelog, Apache Kafka and compatible clusters, and stops cleanly on
    SIGTERM, SIGHUP or Ctrl-C.
    """
    require_extra("registry", "the web server", "starlette", "uvicorn")
    from oncelog.http_server import bind, check_certificate
    from oncelog.registry.server import make_server

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    address = _address(listen, is_protected=users is not None and certificate is not None)
    try:
        check_certificate(certificate, key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if address.host in ("0.0.0.0", "::") and not host_names:
        raise click.UsageError(f"--listen {listen} needs the name that clients use for this machine: --host-name NAME")
    names = frozenset(name.lower() for name in (address.host, *host_names))
    known = None if users is None else _users(users)
    try:
        listener = bind(*address)  # before a topic is made for somebody who cannot be asked
    except OSError as error:
        raise cannot_listen("--listen", address, error) from error
    with listener, _opened(access, topic) as store:
        scheme = "http" if certificate is None else "https"
        bound = Address(address.host, listener.getsockname()[1])

        def ready() -> None:
            click.echo(f"oncelog registry on {scheme}://{bound}")
            sys.stdout.flush()

        make_server(store, names, known, certificate, key, ready).run(sockets=[listener])


@contextmanager
def _opened(access: ClusterAccess, topic: str) -> Iterator[Store]:
    from oncelog.client.config import CLIENT_TABLE
    from oncelog.registry.store import Store, WrongTopic

    access.check_reachable()
    with Store(access.properties(CLIENT_TABLE), topic) as store:
        with access.explained(), progress.doing(f"reading the schemas in {topic}"):
            try:
                store.open()
            except WrongTopic as error:
                advice = f"; '{access.command(*error.fix)}' changes that" if error.fix else ""
                raise click.ClickException(f"{error}{advice}") from error
        yield store


def _address(listen: str, *, is_protected: bool) -> Address:
    try:
        address = parse_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    if not is_protected and not address.is_loopback:
        raise click.BadParameter(
            f"{address.host!r} is not a loopback address. Without --users, --certificate and --key the registry "
            "listens on this machine alone",
            param_hint="--listen",
        )
    return address


def _users(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        name, colon, password = line.partition(":")
        if line.strip() and not (name and colon and password):
            raise click.ClickException(f"line {number} of {file} is not of the form NAME:PASSWORD")
        if line.strip():
            found[name] = password
    if not found:
        raise click.ClickException(f"{file} has no users")
    return found
