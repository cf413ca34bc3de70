"""docs/cli.md, made from the help of the commands.

    python -m oncelog.cli.reference docs/cli.md

A test compares the page with what this makes, so that it never falls behind the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from oncelog.cli.main import COMMANDS, cli

WIDTH: Final = 100
_HEAD: Final = """\
# The command line

Commands on a cluster use only the Kafka protocol, so they work on Oncelog, Apache Kafka and compatible clusters. Name
the cluster with `--bootstrap-servers`, in `ONCELOG_BOOTSTRAP_SERVERS`, or in a `client.properties` file given by
`--config` or `ONCELOG_CONFIG`; the default is 127.0.0.1:9092. `oncelog log` reads data folders and needs no broker.

Results go to the standard output, everything else to the standard error. `--output json` prints the contents of a
table as JSON. Commands that run until they are stopped, such as `serve`, `consume --follow` and `txn watch`, end with
0 when they are stopped. Exit codes:

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | failure, or a check that found something |
| 2 | a wrong command line |
| 129, 130, 143 | a closed terminal, Ctrl-C, SIGTERM |
| 141 | the reader of the output has closed the pipe |

This page is made from the commands' own help by `python -m oncelog.cli.reference docs/cli.md`: change the commands,
not the page.

See also [from Kafka's scripts to oncelog](from-kafka-scripts.md) and [why is my reader stuck?](stuck-reader.md).
"""


def reference() -> str:
    """The whole page."""
    root = click.Context(
        cli, info_name="oncelog", terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"]
    )
    parts = [_HEAD]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if command is not None:
            parts += _sections(command, name, root, level=2)
    return "\n".join(parts)


def _sections(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from _sections(child, child_name, context, level + 1)


def main(path: str) -> None:
    Path(path).write_text(reference())


if __name__ == "__main__":
    main(*sys.argv[1:])
