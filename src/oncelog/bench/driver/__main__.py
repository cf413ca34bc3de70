"""Does one job and prints what it saw as the last line."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Final

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement

ACTIONS: Final = {
    "create-topic": "topics:create",
    "delete-topic": "topics:delete",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "verify": "consume:verify",
    "tail-fetch": "consume:tail_fetch",
    "latency": "latency:latency",
    "transactions": "transactions:transactions",
    "commit-cost": "commit_cost:commit_cost",
    "groups": "groups:groups",
    "first-ack": "first_ack:first_ack",
    "init-ids": "ids:init_ids",
    "survivors": "consume:survivors",
}


def main() -> None:
    job = Job.from_json(sys.argv[1])
    place = f"oncelog.bench.driver.{ACTIONS[job.action]}" if job.action in ACTIONS else job.action
    module, _, name = place.partition(":")
    act: Callable[[Job], Measurement] = getattr(importlib.import_module(module), name)
    sys.stdout.write(json.dumps(act(job).to_dict()) + "\n")


if __name__ == "__main__":
    main()
