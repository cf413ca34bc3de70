"""The command `oncelog lab`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncelog.cli.lab.catalogue import LABS
from oncelog.cli.output import output_option, print_json, print_wrapped
from oncelog.cli.parsing import Choice, NewPath


def _list(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        for name, lab in LABS.items():
            print_wrapped(f"{name:<18} {lab.summary}", 19)
        ctx.exit()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"{path} is there already: name a new folder") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be made: {error.strerror}") from error


@click.command("lab", epilog="Labs: " + ", ".join(LABS))
@click.argument("name", metavar="LAB", type=Choice(list(LABS)))
@click.option("--list", "listed", is_flag=True, is_eager=True, expose_value=False, callback=_list,
              help="List the labs with a summary of each.")  # fmt: skip
@click.option("--pause", is_flag=True, help="Wait for Enter after every step.")
@click.option("--keep", type=NewPath(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Leave the broker's data in this new folder, for 'oncelog log'.")  # fmt: skip
@output_option
def lab_command(name: str, pause: bool, keep: Path | None, output: str) -> None:
    """Show how transactions work, step by step, with what happens in the log.

    A lab starts its own broker, explains every step, and ends with checks. The exit code is 1 if one fails.
    """
    from oncelog.cli.lab.stage import Stage

    if keep is not None:
        _make_folder(keep)
    with Stage.open(keep, quiet=output == "json", pause=pause) as stage:
        LABS[name].load()(stage)
        stage.conclude()
    if output == "json":
        print_json({"lab": name, "passed": stage.passed, "steps": stage.steps, "checks": stage.checks})
    sys.exit(0 if stage.passed else 1)
