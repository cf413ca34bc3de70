"""What an error means for a log: whether it can go on, and what has to be done first.

An error before or during a write leaves a log as it was. One after the write means that the batches are on disk and
what follows from them is not: such a log has failed and refuses to go on until it is opened again, which brings both
together. The next append tries that if the disk was full or no descriptor was left. After any other error only the
operator can know what the disk is worth.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.file_cache import OUT_OF_DESCRIPTORS
from oncelog.storage.log_place import LogPlace

_TRANSIENT: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *OUT_OF_DESCRIPTORS)
"""Errors that say nothing about the disk, or only that it is full."""


REPAIR_SPACE_BYTES: Final = 64 * 1024
"""Must be free on the disk before a log is repaired."""


class LogHealth:
    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self.failure = ""
        """Why the log cannot go on, or an empty text."""
        self.can_be_repaired = False
        """Whether opening a failed log again may help."""
        self.is_half_repaired = False
        """Whether an attempt has failed: the files are not those any more that the open log knows."""

    def fail(self, what: str, error: Exception) -> None:
        self.can_be_repaired = isinstance(error, OSError) and error.errno in _TRANSIENT
        remedy = "" if self.can_be_repaired else "; restart the broker"
        self.failure = f"{what} and the log must be recovered{remedy}: {error}"

    def fail_fsync(self, error: Exception) -> None:
        """The kernel has dropped what it could not write: only recovery can tell what is on disk."""
        self.can_be_repaired = False
        self.failure = f"fsync failed and the log must be recovered; restart the broker: {error}"

    def close(self) -> None:
        """Nothing is appended any more."""
        self.failure, self.can_be_repaired = self.failure or "it is closed", False

    def recover(self) -> None:
        self.failure, self.can_be_repaired, self.is_half_repaired = "", False, False

    def check_space(self) -> None:
        """Raises OSError if the disk is full."""
        probe = self._place.folder / "space"
        replace_file(probe, bytes(REPAIR_SPACE_BYTES), durable=False)
        probe.unlink()

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """An OSError within means that something was left half done: the log has failed."""
        try:
            yield
        except OSError as error:
            self.fail(what, error)
            raise self.error() from error

    @contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """An OSError within means that nothing was done: the log is as it was."""
        try:
            yield
        except OSError as error:
            raise self.error(f"{what}: {error}") from error

    def error(self, message: str = "") -> KafkaError:
        """A KAFKA_STORAGE_ERROR with this message, or with the failure of the log."""
        place = self._place
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{place.partition} in {place.folder}: {message or self.failure}"
        )
