"""Memory of requests and answers is used again, rather than handed back to the system after each of them.

By itself glibc gives the end of its heap back once twice the largest freed block lies there. With frames of a quarter
of a megabyte that is after every frame, and the next one has its pages cleared and mapped in again: half of the CPU
time of a large produce request. Other C libraries have no `mallopt`, or none that means this; they stay as they are.

What many connections had together lies between what others still use, and would stay for ever: it is given back when
most of them have gone.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any, Final

KEPT_BYTES: Final = 32 * 1024 * 1024
"""Freed memory that may stay. Also the largest block that comes from the heap, which is as large as glibc allows."""
GARBAGE_THRESHOLDS: Final = (2_000, 10, 1_000)
START_THRESHOLDS: Final = (100_000, 10, 1_000)
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def _of_c_library(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Only for a process that is nothing but a broker: the setting applies to the whole process."""
    mallopt = _of_c_library("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)


def collect_garbage_rarely() -> None:
    """What is there now stays, and is not looked through again. A full collection goes through all objects while nobody
    is served, for some tenths of a second with thousands of partitions, and finds next to nothing: what a request
    leaves behind is freed by its reference counts. By default a single answer with many elements sets one off."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def collect_garbage_hardly() -> None:
    """While a broker starts: it makes some tens of objects for each partition, and all of them stay."""
    gc.freeze()
    gc.set_threshold(*START_THRESHOLDS)


def give_freed_memory_back() -> None:
    """All but what is kept for the next requests. It takes some milliseconds for a hundred megabytes."""
    malloc_trim = _of_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(KEPT_BYTES)
