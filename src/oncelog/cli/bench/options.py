"""Options that the measuring commands share, and what they do with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from oncelog.bench.catalogue import Group
from oncelog.bench.side import Side
from oncelog.bench.workload import Workload
from oncelog.cli import progress
from oncelog.cli.bench.title import titled
from oncelog.cli.cluster_access import ClusterAccess, split_assignment
from oncelog.cli.extras import require_extra
from oncelog.cli.parsing import Choice, FloatRange, IntRange

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and how often something is measured."""

    clusters: tuple[str, ...]
    rounds: int
    warm_ups: int
    output: str
    settings: tuple[tuple[str, str], ...] = ()

    def sides(self) -> list[Side]:
        return sides_of(self.clusters)

    def measure(self, *workloads: Workload, needs_ownership: bool = False) -> None:
        """Runs, shows, and ends the process with 1 if a side failed, or as an interruption does."""
        from oncelog.bench import rounds
        from oncelog.bench.render import terminal
        from oncelog.testing.broker import temporary_folder

        require_driver()
        if needs_ownership and self.clusters:
            raise click.ClickException(
                "this starts, stops and kills brokers, so it is measured only on brokers started here: "
                "leave --bootstrap-servers out"
            )
        title = workloads[0].kind.replace("-", " ")
        chosen = tuple(titled(replace(workload, settings=self.settings)) for workload in workloads)
        group = Group(title, title.capitalize(), chosen, self.rounds, self.warm_ups)
        with temporary_folder("oncelog-bench-") as folder, progress.doing("measuring"):
            results = rounds.run([group], self.sides(), folder, progress.say)
        if self.output == "json":
            click.echo(results.to_json(), nl=False)
        else:
            terminal.show(results)
        if results.exit_code:
            raise SystemExit(results.exit_code)


def require_driver() -> None:
    require_extra("bench", "the driver", "confluent_kafka")


def sides_of(clusters: tuple[str, ...]) -> list[Side]:
    """What the user named, or the embedded broker."""
    from oncelog.cli.bench.broker import oncelog_side

    found = []
    for text in clusters:
        name, equals, address = text.partition("=")
        found.append(Side(name, bootstrap_servers=address if equals else name, description=address or name))
    if len({side.name for side in found}) != len(found):
        raise click.BadParameter("each cluster needs a name of its own", param_hint="--bootstrap-servers")
    for side in found:
        ClusterAccess(side.bootstrap_servers).check_reachable()
    return found or [oncelog_side()]


clusters_option = click.option(
    "-b", "--bootstrap-servers", "clusters", metavar="[NAME=]HOST:PORT", multiple=True,
    help="A cluster to measure; repeat it to compare. Without any, an embedded broker is started.",
)  # fmt: skip


settings_option = click.option(
    "--set", "client_settings", metavar="NAME=VALUE", multiple=True,
    help="A setting of the client, under librdkafka's name; may be repeated.",
)  # fmt: skip


def split_settings(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(split_assignment(text, "--set") for text in texts)


def setup_options(rounds: int, warm_ups: int) -> Callable[[F], F]:
    """--bootstrap-servers, --rounds, --warm-ups, --set and --output, handed to the command as `setup`."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(*args: Any, clusters: tuple[str, ...], rounds: int, warm_ups: int, output: str,
                    client_settings: tuple[str, ...], **kwargs: Any) -> Any:  # fmt: skip
            setup = Setup(clusters, rounds, warm_ups, output, split_settings(client_settings))
            return command(*args, setup=setup, **kwargs)

        for option in reversed([
            clusters_option,
            click.option("--rounds", default=rounds, show_default=True, type=IntRange(1),
                         help="Rounds per cluster, alternating; all are kept, medians are shown."),
            click.option("--warm-ups", default=warm_ups, show_default=True, type=IntRange(0),
                         help="Rounds before those, which are thrown away."),
            settings_option,
            click.option("-o", "--output", type=Choice(["text", "json"]), default="text", show_default=True,
                         help="Tables for people, or JSON with every round."),
        ]):  # fmt: skip
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]  # a function of other parameters, as click wants it

    return decorate


def size_option(default: int = 100) -> Callable[[F], F]:
    return click.option("--record-size", "--size", "size_bytes", default=default, show_default=True,
                        type=IntRange(16), help="Bytes of a record's value.")  # fmt: skip


def records_option(default: int) -> Callable[[F], F]:
    return click.option("--num-records", "--records", "records", default=default, show_default=True,
                        type=IntRange(2), help="Records per round; one goes ahead, untimed.")  # fmt: skip


def seconds_option(default: float, text: str = "Length of a round.") -> Callable[[F], F]:
    return click.option("--seconds", default=default, show_default=True, type=FloatRange(0, min_open=True),
                        help=text)  # fmt: skip


partitions_option = click.option("--partitions", default=1, show_default=True, type=IntRange(1),
                                 help="Partitions of the topic, written to in turn.")  # fmt: skip
