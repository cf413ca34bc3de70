"""Commands that can work on the data folder of a broker that does not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog.cli.parsing import IntRange, NewPath
from oncelog.core.config import ConfigError
from oncelog.core.errors import KafkaError

if TYPE_CHECKING:
    from oncelog.cluster.stopped_node import StoppedNode

F = TypeVar("F", bound=Callable[..., Any])

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data folder of a broker that does not run, instead of a cluster: for whoever cannot log in.",
)


def new_data_dir_options(command: F) -> F:
    """For commands that may come before the first start."""
    for option in (
        click.option(
            "--node-id", type=IntRange(0), default=1, show_default=True,
            help="The node.id of the broker, if the folder is new.",
        ),
        click.option(
            "--data-dir", type=NewPath(file_okay=False, path_type=Path),
            help="The data folder of a broker that does not run, or is to be started for the first time, instead of a "
            "cluster.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def stopped_broker(data_dir: Path, new_node_id: int | None = None) -> Iterator[StoppedNode]:
    """With `new_node_id` an empty folder becomes one of that broker."""
    from oncelog.cluster.stopped_node import is_unused, open_folder, prepare_folder
    from oncelog.storage.log_dir import LogDirError

    try:
        if new_node_id is not None and is_unused(data_dir):
            prepare_folder(data_dir, new_node_id)
        with open_folder(data_dir) as broker:
            yield broker
    except (LogDirError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    except KafkaError as error:
        raise click.ClickException(f"{error.message} ({error.code.name})") from error
