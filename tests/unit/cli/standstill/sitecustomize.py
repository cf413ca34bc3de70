"""In a command that stands still: SIGUSR1 tells what its threads, and the tasks of its client, wait for."""

from __future__ import annotations

import faulthandler
import signal
import sys
from typing import Any


def tell(*_: object) -> None:
    import asyncio

    from oncelog.client import loop

    faulthandler.dump_traceback(sys.stderr)
    if loop._thread is not None:
        for task in asyncio.all_tasks(loop._thread.loop):
            sys.stderr.write(f"{task.get_name()}:\n")
            waiting: Any = task.get_coro()
            while (frame := getattr(waiting, "cr_frame", None)) is not None:
                sys.stderr.write(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}\n")
                waiting = getattr(waiting, "cr_await", None)
    sys.stderr.flush()


signal.signal(signal.SIGUSR1, tell)
