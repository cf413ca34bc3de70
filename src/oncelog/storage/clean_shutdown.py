"""`.kafka_cleanshutdown`: the last thing a broker writes when it stops, and the first it removes when it starts.

    {"version":0,"brokerEpoch":42}

While it is there, every log of the folder was closed in order and needs no recovery.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from oncelog.storage.atomic_file import replace_file, sync_path

FILE_NAME: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1

_VERSION: Final = 0

logger = logging.getLogger("oncelog.storage")


def write_clean_stop(folder: Path, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    content = json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(folder / FILE_NAME, content.encode())


def has_clean_stop(folder: Path) -> bool:
    return (folder / FILE_NAME).exists()


def read_broker_epoch(folder: Path) -> int | None:
    """What the marker says, which stays where it is. None without a marker, or if it does not say."""
    try:
        epoch = json.loads((folder / FILE_NAME).read_bytes())["brokerEpoch"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) and epoch != NO_BROKER_EPOCH else None


def take_clean_stop(folder: Path) -> bool:
    """Whether the last stop was clean. The marker is gone, durably, when this returns."""
    path = folder / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    path.unlink()
    sync_path(folder)
    try:
        version = json.loads(content)["version"]
    except (ValueError, KeyError, TypeError) as error:
        # Kafka up to 3.8 wrote an empty file, which means the same.
        logger.debug("%s has no content that can be read: %s", path, error)
        return True
    return bool(version == _VERSION)
