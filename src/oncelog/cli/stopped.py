"""Commands that can work on the data folder of a broker that does not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog.core.config import ConfigError

if TYPE_CHECKING:
    from oncelog.cluster.stopped_broker import StoppedBroker

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data folder of a broker that does not run, instead of a cluster: for whoever cannot log in.",
)


@contextmanager
def stopped_broker(data_dir: Path) -> Iterator[StoppedBroker]:
    from oncelog.cluster.stopped_broker import open_folder
    from oncelog.storage.log_dir import LogDirError

    try:
        with open_folder(data_dir) as broker:
            yield broker
    except (LogDirError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
