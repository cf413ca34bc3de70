"""Runs a driver process and takes what it saw. Whatever goes wrong becomes a measurement that failed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final, Protocol

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement

TIMEOUT_S: Final = 420
_TAIL: Final = 400


class Drive(Protocol):
    """How a job is done; tests put something else in its place."""

    def __call__(self, job: Job) -> Measurement: ...


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "oncelog.bench.driver", job.to_json()]


def drive(job: Job) -> Measurement:
    try:
        done = subprocess.run(command(job), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Measurement.failed(f"{job.action} took longer than {TIMEOUT_S} s")
    return read_answer(done.returncode, done.stdout, done.stderr)


def read_answer(code: int, output: str, errors: str) -> Measurement:
    if code != 0:
        lines = [line for line in errors.splitlines() if line.strip()]
        return Measurement.failed(f"the driver failed: {lines[-1][-_TAIL:] if lines else f'exit code {code}'}")
    try:
        return Measurement.from_dict(json.loads(output.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        return Measurement.failed(f"the driver's answer cannot be read: {error}")


def must(measurement: Measurement) -> Measurement:
    """For steps that prepare a measurement: one that went wrong ends it."""
    if measurement.problem:
        raise PreparationError(measurement.problem)
    return measurement


class PreparationError(Exception):
    """A side could not be brought into the state that is to be measured."""
