"""Runs a driver process and reads its measurement. Any failure becomes a failed measurement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Final, Protocol

from oncelog.bench.driver.job import Job
from oncelog.bench.interruption import running
from oncelog.bench.measurement import Measurement

TIMEOUT_S: Final = 420
_TAIL: Final = 400
_LIBRARY_LOG: Final = re.compile(r"%\d\|")


class Drive(Protocol):
    """Runs a job; tests replace it."""

    def __call__(self, job: Job) -> Measurement: ...


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "oncelog.bench.driver", job.to_json()]


def drive(job: Job) -> Measurement:
    try:
        with running(command(job)) as driver:
            output, errors = driver.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Measurement.failed(f"{job.action} took longer than {TIMEOUT_S} s")
    return read_answer(driver.returncode, output, errors)


def read_answer(code: int, output: str, errors: str) -> Measurement:
    if code != 0:
        return Measurement.failed(f"the driver failed: {error_line(errors) or f'exit code {code}'}")
    try:
        return Measurement.from_dict(json.loads(output.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        return Measurement.failed(f"the driver's answer cannot be read: {error}")


def error_line(errors: str) -> str:
    """The last line with words, such as the exception of a traceback; the library's log only where there is no other.

    Errors of librdkafka may have line ends in them, so that the last line of all may be a bracket.
    """
    lines = [line.strip() for line in errors.splitlines() if re.search(r"\w", line)]
    own = [line for line in lines if not _LIBRARY_LOG.match(line)]
    return (own or lines or [""])[-1][-_TAIL:]


def require_success(measurement: Measurement) -> Measurement:
    """For steps that prepare a measurement. Raises PreparationError if one failed."""
    if measurement.problem:
        raise PreparationError(measurement.problem)
    return measurement


class PreparationError(Exception):
    """A side could not be brought into the state that is to be measured."""
