"""The entry point: commands are imported when they are used, so that each starts as fast as it can."""

from __future__ import annotations

import importlib
import sys

import click

from oncelog import __version__
from oncelog.core.config import ConfigError
from oncelog.core.errors import KafkaError

_COMMANDS = {
    "serve": ("oncelog.cli.serve", "serve_command"),
    "demo": ("oncelog.cli.demo", "demo_command"),
    "bench": ("oncelog.cli.bench", "bench_command"),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="oncelog")
def cli() -> None:
    """Exactly-once streaming you can pip install."""


def main() -> None:
    try:
        cli(standalone_mode=True)
    except (ConfigError, KafkaError) as error:
        click.echo(f"oncelog: {error}", err=True)
        sys.exit(1)
