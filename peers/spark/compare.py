"""`python -m peers.spark.compare`: the pipeline on Oncelog, and Spark's own connector on Apache Kafka.

One Spark session for both sides, `local[2]`, with the settings of `oncelog.spark.session()`; the same rows in both
brokers; the same transformation. Sides alternate, and so does which of them begins. Rounds before the measured ones
warm up the JIT compilers. Output is read back by a third client and compared with the input every time.

Where the connector or Apache Kafka cannot be had it says so and measures Oncelog alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

import oncelog.spark
from oncelog import testing
from peers.kafka.kafka import KafkaServer, kafka_available
from peers.spark.cases import CASES, MEMORY_GOAL, SMALL_ROWS, Case, Lab, Place, peak_memory
from peers.spark.connector import ARTIFACTS, connector_jars
from peers.spark.queries import Reader
from peers.spark.results import Result, save, show
from peers.spark.topics import PARTITIONS, VALUE_BYTES, Topics

RESULTS = Path("bench-results")
# A peer that is measured must be allowed to optimise, unlike one that is started for a single test.
KAFKA_OPTIONS = ("-XX:+UseG1GC",)
SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}
SMALL_BATCH_ROWS, LARGE_BATCH_ROWS = 100_000, 2_000_000


def main() -> int:
    options = _arguments()
    console = Console()
    with ExitStack() as stack:
        lab = _set_up(stack, options, console)
        results = [_measure(case, lab, options, console) for case in CASES]
        if options.memory:
            results.append(_measure_memory(lab, console))
        lab.spark.stop()
    show(results, console)
    settings = {
        "rows": options.rows,
        "value bytes": VALUE_BYTES,
        "partitions": PARTITIONS,
        "rows per batch": options.per_batch,
        "rounds": options.rounds,
        "warm-up rounds": options.warm_up,
        "master": "local[2]",
        "connector": ARTIFACTS[0].rsplit(":", 1)[1],
    }
    numbers, page = save(results, settings, RESULTS)
    console.print(f"numbers: {numbers}   page: {page}")
    return 1 if any(result.problems for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers.spark.compare", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--per-batch", type=int, default=500_000, help="maxOffsetsPerTrigger")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that are run and not counted")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave out the memory of workers")
    return parser.parse_args()


def _set_up(stack: ExitStack, options: argparse.Namespace, console: Console) -> Lab:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
    jars, missing = connector_jars(), kafka_available()
    if not jars:
        missing = missing or "its jars are not here and cannot be fetched with Maven"
    broker = stack.enter_context(testing.broker(data_dir=folder / "oncelog"))
    config = {**SPARK, "spark.local.dir": str(folder / "spark"), **({"spark.jars": ",".join(jars)} if jars else {})}
    spark = oncelog.spark.session("bench", master="local[2]", config=config)
    ours = _place(spark, "oncelog", broker.bootstrap_servers, options.rows)
    theirs = None
    if missing is None:
        kafka = stack.enter_context(KafkaServer(folder / "kafka", heap="1g", java_options=KAFKA_OPTIONS))
        theirs = _place(spark, "kafka", kafka.bootstrap_servers, options.rows)
    else:
        console.print(f"SPARK'S CONNECTOR IS NOT MEASURED: {missing}", style="red", markup=False)
    small = ours.topics.create("in-small")
    ours.topics.fill(small, SMALL_ROWS)
    return Lab(spark, folder, ours, theirs, options.per_batch, small)


def _place(spark: Any, form: str, servers: str, rows: int) -> Place:
    topics = Topics(servers)
    source = topics.create("in")
    return Place(Reader(spark, form, servers), topics, source, topics.fill(source, rows))


def _measure(case: Case, lab: Lab, options: argparse.Namespace, console: Console) -> Result:
    result = Result(case.name, case.unit, case.ours_name, case.theirs_name, case.goal, case.higher_is_better)
    sides: list[tuple[list[float], Callable[[Lab], float]]] = [(result.ours, case.ours)]
    if lab.connector is not None or not case.needs_connector:
        sides.append((result.theirs, case.theirs))
    for number in range(options.warm_up + options.rounds):
        for values, side in sides if number % 2 == 0 else reversed(sides):
            try:
                value = side(lab)
            except Exception as error:  # noqa: BLE001  # whatever it was, a side that failed has no number
                traceback.print_exc()
                result.problems.append(f"round {number}: {error}".split("\n", 1)[0])
                return result
            if number >= options.warm_up:
                values.append(value)
        last = " and ".join(f"{values[-1]:,.0f}" for values, _ in sides if values)
        console.print(f"{case.name}, round {number + 1}: {last or 'warming up'}", highlight=False)
    return result


def _measure_memory(lab: Lab, console: Console) -> Result:
    """The same topic in small batches and in large ones: a worker must not hold more for the large."""
    names = f"batches of {LARGE_BATCH_ROWS:,}", f"batches of {SMALL_BATCH_ROWS:,}"
    result = Result("largest Python worker", "MiB", *names, MEMORY_GOAL, higher_is_better=False)
    place = lab.oncelog
    large = place.topics.create("in-large")
    lab.oncelog = Place(place.reader, place.topics, large, place.topics.fill(large, LARGE_BATCH_ROWS))
    try:
        # The small batches come first: what a worker has once held it may keep.
        result.theirs.append(peak_memory(lab, SMALL_BATCH_ROWS))
        result.ours.append(peak_memory(lab, LARGE_BATCH_ROWS))
    except Exception as error:  # noqa: BLE001  # as above
        traceback.print_exc()
        result.problems.append(str(error).split("\n", 1)[0])
    console.print(f"{result.name}: {result.row()[1]}, {result.row()[2]}", highlight=False)
    return result


if __name__ == "__main__":
    sys.exit(main())
