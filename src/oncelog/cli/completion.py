"""`oncelog completion`, and the suggestions that shells show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem

from oncelog.cli.parsing import Choice

_VARIABLE: Final = "_ONCELOG_COMPLETE"
_TIMEOUT_MS: Final = 2_000
"""A suggestion that takes longer is useless."""


@click.command("completion")
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a script for shell completion of oncelog's commands, options and topics.

    \b
    bash:  echo 'eval "$(oncelog completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(oncelog completion zsh)"' >> ~/.zshrc
    fish:  oncelog completion fish > ~/.config/fish/completions/oncelog.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"nothing is known about the shell {shell}")
    click.echo(kind(ctx.find_root().command, {}, "oncelog", _VARIABLE).source())


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _matching(_ask(ctx, "topics"), incomplete)


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _matching(_ask(ctx, "groups"), incomplete)


def complete_transactional_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _matching(_ask(ctx, "ids"), incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _ask(ctx: click.Context, what: str) -> list[str]:
    """The names in the cluster; none after an error, which a shell cannot show."""
    from oncelog.cli.cluster_access import ClusterAccess
    from oncelog.core.config import ConfigError
    from oncelog.core.errors import KafkaError

    try:
        with ClusterAccess(ctx.params.get("bootstrap_servers"), timeout_ms=_TIMEOUT_MS).admin() as admin:
            if what == "topics":
                return list(admin.list_topics())
            if what == "groups":
                return [listing.group_id for listing in admin.list_groups()]
            return [listing.transactional_id for listing in admin.list_transactions()]
    except (click.ClickException, ConfigError, KafkaError, OSError):
        return []
