"""In a command that stands still: SIGUSR1 tells what its threads, and the tasks of its client, wait for."""

from __future__ import annotations

import faulthandler
import signal
import sys


def tell(*_: object) -> None:
    import asyncio

    from oncelog.client import loop

    faulthandler.dump_traceback(sys.stderr)
    if loop._thread is not None:
        for task in asyncio.all_tasks(loop._thread.loop):
            task.print_stack(file=sys.stderr)
    sys.stderr.flush()


signal.signal(signal.SIGUSR1, tell)
