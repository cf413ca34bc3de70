"""`python -m peers.compare [options of oncelog bench]`: Oncelog and Apache Kafka on this machine, alternating.

Where Apache Kafka cannot be had it says so and measures Oncelog alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from oncelog import testing
from peers.kafka.kafka import KafkaServer, kafka_available

# A peer that is measured must be allowed to optimise, unlike one that is started for a single test.
_MEASURED_OPTIONS = ("-XX:+UseG1GC",)


def main() -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        oncelog = stack.enter_context(testing.broker(data_dir=folder / "oncelog"))
        clusters = [f"oncelog={oncelog.bootstrap_servers}"]
        missing = kafka_available()
        if missing is None:
            server = KafkaServer(folder / "kafka", heap="1g", java_options=_MEASURED_OPTIONS)
            kafka = stack.enter_context(server)
            clusters.append(f"kafka={kafka.bootstrap_servers}")
        else:
            print(f"APACHE KAFKA IS NOT MEASURED: {missing}", file=sys.stderr)
        options = [word for cluster in clusters for word in ("--bootstrap-servers", cluster)]
        return subprocess.call([sys.executable, "-m", "oncelog", "bench", *options, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
