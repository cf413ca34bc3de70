"""`python -m peers.compare`: Oncelog and Apache Kafka on this machine, alternating, with goals.

    python -m peers.compare                      everything, about half an hour
    python -m peers.compare --quick              the main goals, in under two minutes
    python -m peers.compare --only consume,ids   some groups or workloads; merged into what was measured before
    python -m peers.compare --list               their names
    python -m peers.compare --render             the report once more, from the results that are there

Where Apache Kafka cannot be had it says so and measures Oncelog alone. The exit code is 1 if a side failed.
Interrupted, it ends its brokers and reports what was finished.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from oncelog.bench import results, suite
from oncelog.bench.interruption import EXIT_INTERRUPTED, sigterm_in_order
from oncelog.bench.render import page
from oncelog.bench.side import Side
from oncelog.cli.bench.broker import EmbeddedBroker, oncelog_side
from oncelog.testing import BrokerProcess
from peers.clients.catalogue import EVERYTHING
from peers.kafka.jars import kafka_missing
from peers.kafka.kafka import KafkaServer, free_port
from peers.replicated import OTHER, SAME, ReplicatedPair
from peers.secured import BROKER_SETTINGS, KAFKA_SETTINGS, VARIANT, allow

# What Kafka's own scripts start a broker with, without a smallest heap, which would only make it look bigger.
JAVA_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
HEAP: Final = "1g"
KAFKA_VERSION: Final = "4.3.0"
# As on the other side, deleted data must not be written to disk while others measure. Kafka looks for it first after
# the initial delay, and then as often as the other one says.
SETTINGS: Final = {"log.segment.delete.delay.ms": "0", "log.initial.task.delay.ms": "500"}


class SecuredKafka(KafkaServer):
    """With TLS, a login and ACLs."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        super().__init__(
            folder,
            properties={**SETTINGS, **BROKER_SETTINGS, **KAFKA_SETTINGS},
            heap=HEAP,
            java_options=JAVA_OPTIONS,
            more_listeners={"SASL_SSL": self._port},
        )

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        super().start()
        allow(self.bootstrap_servers)
        return self


class SecuredOncelog(EmbeddedBroker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = {"log.segment.delete.delay.ms": 0, **BROKER_SETTINGS}
        listen = ["--listen", f"SASL_SSL://127.0.0.1:{free_port()}"]
        self._process = BrokerProcess(folder / "data", settings, log_level="warning", arguments=listen)

    def start(self) -> None:
        super().start()
        allow(self.bootstrap_servers)


def _java(folder: Path, **how: Any) -> KafkaServer:
    return KafkaServer(folder, properties=SETTINGS, heap=HEAP, java_options=JAVA_OPTIONS, **how)


def _pairs(leader: str, other: str) -> dict[str, Callable[[Path], ReplicatedPair]]:
    """Leader and follower of the same kind, or not."""
    kinds = {SAME: (leader, leader), OTHER: (leader, other)}

    def pair(found: tuple[str, str]) -> Callable[[Path], ReplicatedPair]:
        return lambda folder: ReplicatedPair(folder, found, _java)

    return {name: pair(found) for name, found in kinds.items()}


def kafka_side() -> Side:
    description = (
        f"Apache Kafka {KAFKA_VERSION}, one node, default settings, deleted files removed and new groups rebalanced "
        f"at once, -Xmx{HEAP} and otherwise the JVM options of its scripts"
    )
    return Side("kafka", _java, description=description, variants={VARIANT: SecuredKafka, **_pairs("kafka", "oncelog")})


def our_side() -> Side:
    return replace(oncelog_side(), variants={VARIANT: SecuredOncelog, **_pairs("oncelog", "kafka")})


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sides() -> tuple[list[Side], list[str]]:
    """Ours first, and what a reader of the report must know."""
    missing = kafka_missing()
    if missing is None:
        return [our_side(), kafka_side()], []
    remark = f"APACHE KAFKA IS NOT MEASURED, SO THERE ARE NO RATIOS: {missing}"
    say(f"\n{'!' * len(remark)}\n{remark}\n{'!' * len(remark)}\n")
    return [our_side()], [remark]


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    choice = suite.Choice(options.quick, suite.split_names(options.only), options.rounds, catalogue=EVERYTHING)
    folder = options.results or choice.folder
    if options.list:
        for group in EVERYTHING:
            print(f"{group.name}: {', '.join(workload.name for workload in group.workloads)}")
        return 0
    if options.render:
        found = results.load(folder)
        if found is None:
            say(f"there are no results in {folder}")
            return 1
        if options.page:
            page.update(options.page, found)
        return suite.report(found, folder, say)
    try:
        choice.groups()
    except KeyError as error:
        say(f"there is no group or workload {error}; see --list")
        return 2
    measured, remarks = sides()
    return suite.report(suite.run(choice, measured, folder, say, remarks), folder, say)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m peers.compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="the main goals with less of everything")
    parser.add_argument("--only", action="append", default=[], metavar="NAME,...", help="groups or workloads")
    parser.add_argument("--rounds", type=_positive, help="instead of what the catalogue says")
    parser.add_argument("--results", type=Path, help="where the report goes (default: bench-results)")
    parser.add_argument("--list", action="store_true", help="the names of groups and workloads")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the report again")
    parser.add_argument("--page", type=Path, help="with --render: a page of the documentation to put the results into")
    return parser


if __name__ == "__main__":
    try:
        with sigterm_in_order():
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
