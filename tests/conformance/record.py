"""Record the transcripts of the wire scenarios from Apache Kafka.

    python -m tests.conformance.record [WORD ...]      # only scenarios whose name contains one of the words

The transcripts are committed, so that Oncelog is compared with Apache Kafka also where there is no Java.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.conformance import brokers, scenarios, transcripts
from tests.conformance.scenario import play


def record(words: Sequence[str]) -> None:
    for file, group in scenarios.FILES.items():
        known = transcripts.load(file)
        names = {scenario.name for scenario in group}
        recorded = {name: by_version for name, by_version in known.items() if name in names}
        for scenario in group:
            if words and not any(word in f"{file}/{scenario.name}" for word in words):
                continue
            started = time.monotonic()
            recorded[scenario.name] = {}
            for version in scenario.transaction_versions:
                kafka = brokers.get("kafka", version, scenario.profile)
                recorded[scenario.name][version] = play(kafka.bootstrap_servers, scenario, kafka.sasl_servers)
            sys.stdout.write(f"{file}/{scenario.name}: {time.monotonic() - started:.2f} s\n")
        transcripts.save(file, recorded)


if __name__ == "__main__":
    try:
        record(sys.argv[1:])
    finally:
        brokers.stop_all()
