"""`oncelog bench`: rates of any Kafka-compatible cluster, side by side."""

from __future__ import annotations

import contextlib
import importlib.util

import click


@click.command("bench")
@click.option("--bootstrap-servers", "clusters", metavar="[NAME=]HOST:PORT", multiple=True,
              help="A cluster to measure; repeat it to compare. Without any, an embedded broker.")  # fmt: skip
@click.option("--records", default=500_000, show_default=True, help="Records of each produce and consume.")
@click.option("--sizes", default="100,1000", show_default=True, help="Bytes of a record, separated by commas.")
@click.option("--transactions", default=500, show_default=True, help="Transactions of one record each; 0 for none.")
@click.option("--rounds", default=3, show_default=True, help="Rounds per cluster, alternating; medians are shown.")
def bench_command(clusters: tuple[str, ...], records: int, sizes: str, transactions: int, rounds: int) -> None:
    """Measure produce, consume and transaction rates with confluent-kafka as the driver.

    Figures mean something as ratios of clusters measured in one run on one machine. A run in which a record did not
    arrive shows its problem instead of a rate.
    """
    from oncelog import testing
    from oncelog.bench import report, runner
    from oncelog.bench.workload import Workload

    if importlib.util.find_spec("confluent_kafka") is None:
        raise click.ClickException("the driver is missing: pip install confluent-kafka")
    try:
        widths = [int(text) for text in sizes.split(",")]
    except ValueError:
        raise click.BadParameter(f"{sizes!r} is not a list of whole numbers", param_hint="--sizes") from None
    workloads = [Workload(kind, records, size) for size in widths for kind in ("produce", "consume")]
    if transactions:
        workloads.append(Workload("transactions", transactions, widths[0]))
    with contextlib.ExitStack() as stack:
        addresses = _addresses(clusters)
        if not addresses:
            broker = stack.enter_context(testing.broker({"log.segment.delete.delay.ms": 0}))
            addresses = {"oncelog": broker.bootstrap_servers}
        results = runner.run(addresses, workloads, rounds, lambda text: click.echo(text, err=True))
    report.show(results)
    if any(result.problem for result in results):
        raise SystemExit(1)


def _addresses(clusters: tuple[str, ...]) -> dict[str, str]:
    addresses: dict[str, str] = {}
    for text in clusters:
        name, equals, address = text.partition("=")
        addresses[name] = address if equals else name
    return addresses
