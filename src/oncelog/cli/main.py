"""The entry point: commands are imported when they are used, so that each starts as fast as it can."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final, NamedTuple

import click

from oncelog import __version__
from oncelog.cli import interruption, streams
from oncelog.core.config import ConfigError, did_you_mean
from oncelog.core.errors import KafkaError

EXIT_BROKEN_PIPE: Final = 141
"""128 + SIGPIPE: the reader of our output has closed the pipe."""


class LazyCommand(NamedTuple):
    module: str
    attribute: str
    summary: str
    """The first sentence of its help, so that `oncelog --help` imports nothing."""


COMMANDS: Final = {
    "serve": LazyCommand("oncelog.cli.serve", "serve_command", "Run a broker that Kafka clients can use."),
    "topic": LazyCommand("oncelog.cli.topic", "topic_command", "List, create, describe, change and delete topics."),
    "produce": LazyCommand(
        "oncelog.cli.produce", "produce_command", "Write the lines of FILEs, or of the standard input, to TOPIC."
    ),
    "consume": LazyCommand("oncelog.cli.consume", "consume_command", "Print the records of TOPICs."),
    "txn": LazyCommand(
        "oncelog.cli.txn", "txn_command", "See transactions, find out which one holds readers back, and end it."
    ),
    "group": LazyCommand(
        "oncelog.cli.group", "group_command", "Look at consumer groups, move their offsets, delete them."
    ),
    "config": LazyCommand(
        "oncelog.cli.config", "config_command", "Show and change settings of topics, brokers and groups."
    ),
    "user": LazyCommand("oncelog.cli.user", "user_command", "Add, list and delete users that log in with SCRAM."),
    "acl": LazyCommand(
        "oncelog.cli.acl", "acl_command", "Say who may do what, and find out why somebody may or may not."
    ),
    "quota": LazyCommand("oncelog.cli.quota", "quota_command", "Limit what users, client ids and addresses use."),
    "cluster": LazyCommand(
        "oncelog.cli.cluster",
        "cluster_command",
        "Run a cluster on this machine, look at one as a whole, move partitions between its brokers.",
    ),
    "connect": LazyCommand(
        "oncelog.cli.connect", "connect_command", "Move data between databases and topics, exactly once."
    ),
    "registry": LazyCommand(
        "oncelog.cli.registry",
        "registry_command",
        "Serve a schema registry, which keeps its schemas in a topic.",
    ),
    "console": LazyCommand(
        "oncelog.cli.console",
        "console_command",
        "Show a cluster in a browser: transactions as they happen, which ones hold readers back, groups, messages.",
    ),
    "log": LazyCommand(
        "oncelog.cli.log",
        "log_command",
        "Inspect data folders offline, without a broker; `dirs` asks brokers.",
    ),
    "lab": LazyCommand(
        "oncelog.cli.lab.command",
        "lab_command",
        "Show how transactions work, step by step, with what happens in the log.",
    ),
    "completion": LazyCommand(
        "oncelog.cli.completion",
        "completion_command",
        "Print a script for shell completion of oncelog's commands, options and topics.",
    ),
    "run": LazyCommand(
        "oncelog.cli.demo",
        "run_command",
        "Run a PySpark PROGRAM on a Spark set up for exactly-once pipelines.",
    ),
    "demo": LazyCommand(
        "oncelog.cli.demo",
        "demo_command",
        "Orders through Spark, one transaction per micro-batch, with kills, and the proof that each was written once.",
    ),
    "bench": LazyCommand(
        "oncelog.cli.bench",
        "bench_command",
        "Measure produce, consume and transaction rates with confluent-kafka as the driver.",
    ),
}


class ReaderGone(Exception):
    """Nobody reads our output any more. Not an OSError, because click takes a broken pipe for a failure."""


class LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderGone from error
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = did_you_mean(name, COMMANDS) or "; 'oncelog --help' lists them"
            raise click.UsageError(f"there is no command {name or repr(name)}{near}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="oncelog")
def cli() -> None:
    """Exactly-once streaming you can pip install."""


def main() -> None:
    interruption.treat_signals_as_ctrl_c()
    try:
        streams.prepare()
        sys.exit(cli.main(prog_name="oncelog", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        # What click makes of an interruption has it as its cause.
        reason = error.__cause__ if isinstance(error, click.exceptions.Abort) else error
        click.echo(f"oncelog: {interruption.cause(reason)}", err=True)
        sys.exit(interruption.exit_code(reason))
    except ReaderGone:
        # Python flushes stdout once more when it ends, and would complain about the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        click.echo(f"oncelog: {streams.sentence(error)}", err=True)
        sys.exit(1)
    except (ConfigError, KafkaError) as error:
        click.echo(f"oncelog: {error}", err=True)
        sys.exit(1)
