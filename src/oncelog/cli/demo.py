"""`oncelog demo`: the pipeline proving itself on this machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click


@click.command("demo")
@click.option("--records", type=click.IntRange(min=1), default=20_000, show_default=True, help="Orders to generate.")
@click.option("--master", default="local[2,4]", show_default=True, help="The Spark master to run on.")
@click.option("--bootstrap-servers", help="Run against this cluster instead of an embedded broker.")
@click.option("--keep", is_flag=True, help="Keep the broker's and Spark's folders afterwards.")
def demo_command(records: int, master: str, bootstrap_servers: str | None, keep: bool) -> None:
    """Orders through Spark, one transaction per micro-batch, and the proof that each was written once."""
    from oncelog.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as missing:
        raise click.ClickException(str(missing)) from None
    folder = Path(tempfile.mkdtemp(prefix="oncelog-demo-"))
    passed = False
    try:
        passed = _run(folder, records, master, bootstrap_servers)
    finally:
        _leave(folder, keep)
    sys.exit(0 if passed else 1)


def _run(folder: Path, records: int, master: str, bootstrap_servers: str | None) -> bool:
    from oncelog.spark.demo.simple import run_simple
    from oncelog.testing import BrokerProcess

    if bootstrap_servers is not None:
        return run_simple(bootstrap_servers, folder, records, master)
    broker = BrokerProcess(folder / "broker").start()
    try:
        return run_simple(broker.bootstrap_servers, folder, records, master)
    finally:
        broker.stop()


def _leave(folder: Path, keep: bool) -> None:
    import shutil

    if keep:
        click.echo(f"Kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
