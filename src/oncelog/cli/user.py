"""`oncelog user`: users that log in with SCRAM."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TextIO

import click

from oncelog.cli.cluster_access import ClusterAccess, cluster_options, confirm, yes_option
from oncelog.cli.output import output_option, print_rows
from oncelog.cli.parsing import Choice, IntRange
from oncelog.cli.stopped import data_dir_option, new_data_dir_options, stopped_broker
from oncelog.security.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from oncelog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES, ScramMechanism, make_credential

_NAME = click.argument("name", metavar="USER")
_MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)


@click.group("user")
def user_command() -> None:
    """Add, list and delete users that log in with SCRAM.

    Users of PLAIN are not among them: they are in the broker's settings.
    """


@user_command.command("add")
@_NAME
@click.option("--mechanism", "mechanisms", multiple=True, type=Choice(_MECHANISMS, case_sensitive=False),
              help="Which one to use; may be repeated.  [default: both]")  # fmt: skip
@click.option("--iterations", default=ITERATIONS_MIN, show_default=True,
              type=IntRange(ITERATIONS_MIN, ITERATIONS_MAX), help="How much work a guess takes.")  # fmt: skip
@click.option("--password-file", type=click.File("r"), help="A file with the password, - for the standard input.")
@new_data_dir_options
@cluster_options
def add_command(
    access: ClusterAccess,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: TextIO | None,
    data_dir: Path | None,
    node_id: int,
) -> None:
    """Add a user, or give one another password.

    Asks for the password; it is never an argument, because others can see those.
    """
    if not name:
        raise click.UsageError("the name of the user is empty")
    password = _password(password_file)
    wanted = [ScramMechanism.of(mechanism.upper()) for mechanism in mechanisms or _MECHANISMS]
    if data_dir is not None:
        from oncelog.security.scram import ScramUser

        with stopped_broker(data_dir, node_id) as broker:
            broker.change_users(
                {
                    ScramUser(name, each): make_credential(each, password, secrets.token_bytes(SALT_BYTES), iterations)
                    for each in wanted
                }
            )
    else:
        from oncelog.client.admin import ScramUpsertion

        with access.admin() as admin:
            for each in wanted:
                admin.alter_user_scram_credentials([ScramUpsertion(name, each, password, iterations)])
    click.echo(f"{name} logs in with {' or '.join(each.sasl_name for each in wanted)}")


def _password(file: TextIO | None) -> str:
    if file is not None:
        password = file.read().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise click.UsageError("there is no terminal to ask for the password: use --password-file, or - for a pipe")
    if not password:
        raise click.ClickException("the password is empty")
    return password


@user_command.command("list")
@data_dir_option
@output_option
@cluster_options
def list_command(access: ClusterAccess, data_dir: Path | None, output: str) -> None:
    """List the users and how they log in."""
    if data_dir is not None:
        with stopped_broker(data_dir) as broker:
            found = sorted((user.name, user.mechanism, kept.iterations) for user, kept in broker.users.items())
    else:
        with access.admin() as admin:
            users = admin.describe_user_scram_credentials()
        found = sorted((name, mechanism, count) for name, kept in users.items() for mechanism, count in kept.items())
    rows = [{"user": name, "mechanism": each.sasl_name, "iterations": count} for name, each, count in found]
    print_rows(rows, ["user", "mechanism", "iterations"], output, empty="there are no users")


@user_command.command("delete")
@_NAME
@yes_option
@data_dir_option
@cluster_options
def delete_command(access: ClusterAccess, name: str, yes: bool, data_dir: Path | None) -> None:
    """Delete a user.

    Connections that the user has stay until they end, or until connections.max.reauth.ms has passed.
    """
    confirm(f"Delete user {name}?", yes=yes)
    if data_dir is not None:
        with stopped_broker(data_dir) as broker:
            theirs = [user for user in broker.users if user.name == name]
            if not theirs:
                raise click.ClickException(f"there is no user {name}")
            broker.change_users({}, theirs)
    else:
        from oncelog.client.admin import ScramDeletion

        with access.admin() as admin:
            for mechanism in admin.describe_user_scram_credentials([name])[name]:
                admin.alter_user_scram_credentials(delete=[ScramDeletion(name, mechanism)])
    click.echo(f"deleted {name}")
