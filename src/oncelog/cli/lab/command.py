"""The command `oncelog lab`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncelog.cli.lab.catalogue import LABS
from oncelog.cli.output import output_option, print_json, print_wrapped
from oncelog.cli.parsing import Choice, NewPath


def _list(output: str) -> None:
    if output == "json":
        print_json([{"lab": name, "summary": lab.summary} for name, lab in LABS.items()])
    else:
        for name, lab in LABS.items():
            print_wrapped(f"{name:<18} {lab.summary}", 19)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"{path} is there already: name a new folder") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be made: {error.strerror}") from error


@click.command("lab", epilog="Labs: " + ", ".join(LABS))
@click.argument("name", metavar="LAB", required=False, type=Choice(list(LABS)))
@click.option("--list", "listed", is_flag=True, help="List the labs with a summary of each.")
@click.option("--pause", is_flag=True, help="Wait for Enter after every step.")
@click.option("--keep", type=NewPath(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Leave the broker's data in this new folder, for 'oncelog log'.")  # fmt: skip
@output_option
@click.pass_context
def lab_command(
    ctx: click.Context, name: str | None, listed: bool, pause: bool, keep: Path | None, output: str
) -> None:
    """Show how transactions work, step by step, with what happens in the log.

    A lab starts its own broker, explains every step, and ends with checks. The exit code is 1 if one fails.
    """
    if listed:
        _list(output)
        return
    if name is None:
        raise click.MissingParameter(ctx=ctx, param=next(p for p in ctx.command.params if p.name == "name"))
    from oncelog.cli.lab.stage import Stage

    if keep is not None:
        _make_folder(keep)
    with Stage.open(keep, quiet=output == "json", pause=pause) as stage:
        LABS[name].load()(stage)
        stage.conclude()
    if output == "json":
        print_json({"lab": name, "passed": stage.passed, "steps": stage.steps, "checks": stage.checks})
    sys.exit(0 if stage.passed else 1)
