"""How commands find and use a cluster: options, environment, configuration file, and messages for errors.

The cluster is named by `--bootstrap-servers`, else by ONCELOG_BOOTSTRAP_SERVERS, else in a configuration file (Kafka's
client.properties) given by `--config` or ONCELOG_CONFIG, else it is 127.0.0.1:9092, where `oncelog serve` listens.
"""

from __future__ import annotations

import functools
import re
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from oncelog.cli import progress
from oncelog.cli.parsing import duration_ms, topic_and_partitions
from oncelog.core.address import Address
from oncelog.core.config import ConfigError, ConfigTable, did_you_mean
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.properties import Properties, decode_properties, parse_properties

if TYPE_CHECKING:
    from oncelog.client.admin import Admin, ConfigResource
    from oncelog.client.cluster import TopicInfo
    from oncelog.client.config import ClientConfig

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVERS: Final = "127.0.0.1:9092"
DEFAULT_TIMEOUT: Final = "15s"
SERVERS_VARIABLE: Final = "ONCELOG_BOOTSTRAP_SERVERS"
CONFIG_VARIABLE: Final = "ONCELOG_CONFIG"
PROBE_TIMEOUT_S: Final = 3.0
"""For the first connection attempt, which shows quickly whether anybody listens."""
NEAR_NAMES_MAX: Final = 3
MISSPELT_RATIO_MIN: Final = 0.9
_PROTOCOL: Final = "security.protocol"
_PATTERN: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The options of a command that concern its cluster. `servers` is None if only the file can name it."""

    servers: str | None
    file_settings: Properties = field(default_factory=Properties)
    settings: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = duration_ms(DEFAULT_TIMEOUT)
    is_strict: bool = True
    """Every setting must be one that all clients have. Otherwise the producer or consumer of the command checks it."""
    given: tuple[str, ...] = ()
    """The options on this command line that name the cluster, for commands that are suggested to the user."""

    @property
    def bootstrap_servers(self) -> str:
        typed, known = (self.servers, None) if "-b" in self.given else (None, self.servers)
        return (
            typed
            or self.settings.get("bootstrap.servers")
            or known
            or self.file_settings.get("bootstrap.servers")
            or DEFAULT_SERVERS
        )

    def properties(self, table: ConfigTable, **fixed: Any) -> dict[str, Any]:
        """Settings for a client with these keys.

        A file may serve many tools, so what is unknown in it is left out; what was said with --set must be known.
        """
        chosen: dict[str, Any] = {"client.id": "oncelog-cli", "default.api.timeout.ms": self.timeout_ms}
        chosen |= {name: value for name, value in self.file_settings.items() if name in table}
        chosen |= {name.replace("_", "."): value for name, value in fixed.items() if value is not None}
        chosen |= self.settings
        chosen["bootstrap.servers"] = self.bootstrap_servers
        return chosen

    def check_settings(self, options: Mapping[str, str]) -> None:
        """Raises UsageError if --set is used for what an option of the command says."""
        for name, option in options.items():
            if name in self.settings:
                raise click.UsageError(f"{name} is not set by --set here, but by {option}")

    def client_config(self) -> ClientConfig:
        from oncelog.client.config import CLIENT_TABLE, ClientConfig

        properties = self.properties(CLIENT_TABLE, allow_auto_create_topics=False)
        if not self.is_strict:
            properties = {name: value for name, value in properties.items() if name in CLIENT_TABLE}
        return ClientConfig.parse(properties)

    def command(self, *words: str) -> str:
        """The text of another command on the same cluster."""
        return shlex.join(["oncelog", *words, *self.command_options()])

    def command_options(self) -> tuple[str, ...]:
        """The options by which another command reaches the same cluster."""
        return (*self.given, *self._settings_of_all_clients())

    def _settings_of_all_clients(self) -> Iterator[str]:
        from oncelog.client.config import CLIENT_TABLE

        for name, value in self.settings.items():
            if name in CLIENT_TABLE and not CLIENT_TABLE[name].sensitive:
                yield from ("--set", f"{name}={value}")

    def check_reachable(self) -> None:
        """Raises ClickException if nobody listens at any of the addresses."""
        from oncelog.client.config import parse_addresses

        addresses = parse_addresses(self.bootstrap_servers)
        problems = unreachable(progress.each(addresses, lambda address: f"connecting to {address}"), PROBE_TIMEOUT_S)
        if problems:
            raise click.ClickException(
                f"no broker answers at {problems}. Start one with '{_serve_command(addresses)}', or name another with "
                f"--bootstrap-servers or {SERVERS_VARIABLE}"
            )

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """An admin client; errors become messages."""
        from oncelog.client.admin import Admin

        with self.explained(), progress.doing(f"waiting for {self.bootstrap_servers}"):
            self.check_reachable()
            with Admin(self.client_config()) as admin:
                yield admin

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Expected errors become one line that says what happened and what to do."""
        try:
            yield
        except ConfigError as error:
            place = "" if error.key in self.settings else self.file_settings.place_of(error.key)
            raise click.ClickException(f"{place}{error}") from error
        except KafkaError as error:
            raise click.ClickException(self.explain(error)) from error

    def explain(self, error: KafkaError) -> str:
        text = error.message or error.code.name
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            advice = f"See '{self.command('txn', 'list')}'"
        else:
            advice = _ADVICE.get(error.code, "")
        return f"{text} ({error.code.name})" + (f". {advice}" if advice else "")


def unreachable(addresses: Iterable[Address], timeout_s: float) -> str:
    """Why nobody can be reached at any of the addresses; empty if somebody can."""
    problems = []
    for address in addresses:
        try:
            socket.create_connection(address, timeout=timeout_s).close()
        except OSError as error:
            problems.append(f"{address}: {error.strerror or error}")
        else:
            return ""
    return "; ".join(problems)


def _serve_command(addresses: list[Address]) -> str:
    """The command that starts a broker at the address, if it is on this machine."""
    first = addresses[0]
    is_elsewhere = len(addresses) > 1 or not first.is_loopback
    return "oncelog serve" if is_elsewhere or str(first) == DEFAULT_SERVERS else f"oncelog serve --listen {first}"


def cluster_options(command: F) -> F:
    """The options that every command on a cluster has, passed to it as `access`."""
    return _with_options(command, is_strict=True)


def client_options(command: F) -> F:
    """The same for commands whose `--set` is meant for their producer or consumer."""
    return _with_options(command, is_strict=False)


def _with_options(command: F, *, is_strict: bool) -> F:
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        bootstrap_servers: str | None,
        config_file: Path | None,
        client_settings: tuple[str, ...],
        timeout: str,
        **kwargs: Any,
    ) -> Any:
        file_settings = _read_file(config_file)
        if bootstrap_servers == "":
            raise click.BadParameter("no address is given", param_hint="--bootstrap-servers")
        if list(_given("--timeout", "timeout")):
            file_settings.pop("default.api.timeout.ms", None)
        access = ClusterAccess(
            bootstrap_servers,
            file_settings,
            dict(split_assignment(text, "--set") for text in client_settings),
            duration_ms(timeout, "--timeout", low=1),
            is_strict,
            tuple(_given("-b", "bootstrap_servers")) + tuple(_given("--config", "config_file")),
        )
        with access.explained():
            _check_security(access.file_settings, access.settings)
        return command(*args, access=access, **kwargs)

    for option in reversed([
        click.option("-b", "--bootstrap-servers", metavar="HOST:PORT,...", envvar=SERVERS_VARIABLE, show_envvar=True,
                     help=f"Addresses of brokers.  [default: {DEFAULT_SERVERS}]"),
        click.option("--config", "--command-config", "config_file", envvar=CONFIG_VARIABLE, show_envvar=True,
                     type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="A client.properties file with Kafka's names."),
        click.option("--set", "client_settings", metavar="NAME=VALUE", multiple=True,
                     help="A setting of the client, under Kafka's name; may be repeated."),
        click.option("--timeout", default=DEFAULT_TIMEOUT, show_default=True, metavar="DURATION",
                     help="How long to try before giving up."),
    ]):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # a function of other parameters, as click wants it


def _given(option: str, parameter: str) -> Iterator[str]:
    """An option and its value, if it was written on the command line."""
    context = click.get_current_context()
    if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
        yield from (option, str(context.params[parameter]))


def split_assignment(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def _check_security(file_settings: Properties, settings: Mapping[str, str]) -> None:
    """Refuse a file that asks for what the client does not have: the command would use a less secure connection."""
    properties = {**file_settings, **settings}
    if properties:
        from oncelog.client.config import check_security

        check_security(properties)
    if _PROTOCOL in properties:
        return
    for name in file_settings:
        if _is_misspelt_protocol(name):
            raise ConfigError(f"there is no setting {name}; did you mean {_PROTOCOL}?", name)


def _is_misspelt_protocol(name: str) -> bool:
    """Other names that are not known are for other tools. admin.security.protocol is one of them."""
    usual = name.lower().replace("_", ".").replace("-", ".")
    if "proto" not in usual and "secur" not in usual:
        return False
    from difflib import SequenceMatcher

    return SequenceMatcher(None, usual, _PROTOCOL).ratio() > MISSPELT_RATIO_MIN


def _read_file(path: Path | None) -> Properties:
    if path is None:
        return Properties()
    try:
        return parse_properties(decode_properties(path.read_bytes()), str(path))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from error


_OF_LISTENERS: Final = "listener.name."
"""Settings that brokers show only where they are set."""
_ADVICE: Final = {
    ErrorCode.NON_EMPTY_GROUP: "Stop its members first",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for the WRITE permission on the transactional id",
    ErrorCode.UNSUPPORTED_VERSION: "The broker is too old for it, has nothing that it is for, or is a controller",
    ErrorCode.REQUEST_TIMED_OUT: "A longer --timeout may help",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "The pattern is not one that RE2 understands",
    ErrorCode.INVALID_REPLICATION_FACTOR: "There are fewer brokers than replicas asked for",
}


def require_topics(admin: Admin, names: Iterable[str]) -> dict[str, TopicInfo]:
    """The topics by name. For an unknown name, the error lists similar ones."""
    known: dict[str, TopicInfo] = admin.list_topics(internal=True)
    return {name: _require(name, known) for name in names}


def matching_topics(admin: Admin, names: Iterable[str]) -> dict[str, TopicInfo]:
    """The topics by name, where a name may be a pattern with *, ? or [...]. No topic can have such a name.

    Internal topics match only if the pattern begins like them.
    """
    known: dict[str, TopicInfo] = admin.list_topics(internal=True)
    found: dict[str, TopicInfo] = {}
    for name in names:
        if not _PATTERN.search(name):
            found[name] = _require(name, known)
            continue
        matching = [
            topic for topic, info in known.items()
            if fnmatchcase(topic, name) and (name.startswith("__") or not info.is_internal)
        ]  # fmt: skip
        if not matching:
            raise click.ClickException(f"no topic matches {name}")
        found |= {topic: known[topic] for topic in sorted(matching)}
    return found


def _require(name: str, known: Mapping[str, TopicInfo]) -> TopicInfo:
    if name not in known:
        raise click.ClickException(unknown_name("topic", name, known))
    return known[name]


def require_settings(admin: Admin, resource: ConfigResource, names: Iterable[str]) -> None:
    """Brokers remove a setting whatever its name is, and find nothing wrong with it."""
    known = admin.describe_configs(resource)
    for name in names:
        if name not in known and not name.startswith(_OF_LISTENERS):
            raise click.ClickException(unknown_name("setting", name, known))


def require_partitions(admin: Admin, texts: Iterable[str]) -> list[TopicPartition]:
    """The partitions meant by TOPIC or TOPIC:PARTITION[,PARTITION], each of which exists. TOPIC may be a pattern."""
    found = []
    for text in texts:
        name, numbers = topic_and_partitions(text)
        for topic, info in matching_topics(admin, [name]).items():
            count = len(info.partitions)
            for number in range(count) if numbers is None else numbers:
                if not 0 <= number < count:
                    raise click.ClickException(f"topic {topic} has {count} partitions, there is no {number}")
                found.append(TopicPartition(topic, number))
    return sorted(set(found))


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    return f"there is no {what} {name or repr(name)}{did_you_mean(name, known, count=NEAR_NAMES_MAX)}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `--yes` was given. Without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} Repeat the command with --yes to do it")
    with progress.hidden():
        is_confirmed = click.confirm(question)
    if not is_confirmed:
        progress.say("nothing was done")
        raise click.exceptions.Exit(1)


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
