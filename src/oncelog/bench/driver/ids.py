"""Makes a coordinator know many transactional ids.

Ten thousand clients would take minutes to start, so this is the one job that uses the project's own client: an admin
that initialises the ids one after the other. It prepares a measurement and is never on the clock.
"""

from __future__ import annotations

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement
from oncelog.client import Admin, ClientConfig


def init_ids(job: Job) -> Measurement:
    names = [f"oncelog-bench-id-{number}" for number in range(job.workload.x)]
    with Admin(ClientConfig(bootstrap_servers=job.bootstrap_servers)) as admin:
        known = admin.fence_producers(names)
    return Measurement({"ids": len(known)}, expected=len(names), arrived=len(known))
