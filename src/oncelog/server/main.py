"""Running a broker as a process: settings in, one ready line out, a clean end on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelog import __version__
from oncelog.core import failpoints
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG, check_roles, is_controller, warnings_of
from oncelog.core.config import ConfigError, Settings
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.properties import decode_properties, parse_properties
from oncelog.server.allocator import collect_garbage_hardly, collect_garbage_rarely, keep_freed_memory
from oncelog.server.operator_log import set_up_logging
from oncelog.server.server import NO_USERS, ClusterRefusal, FirstUsers, Server
from oncelog.storage import fsyncs
from oncelog.storage.log_dir import LogDirError

if TYPE_CHECKING:
    from oncelog.server.controller_server import ControllerServer

log = logging.getLogger("oncelog.server")

DEFAULT_DATA_DIR = Path("oncelog-data")
READY: Final = "oncelog ready on"
FAILURES: Final = (ConfigError, LogDirError, ClusterRefusal, OSError)
"""What ends a broker with a sentence, see `sentence`."""
SWITCH_INTERVAL_S: Final = 0.001
"""How long the loop waits for a worker that decodes or encodes a large message: Python's own 5 ms would add to every
request meanwhile."""


class Start(NamedTuple):
    """What is asked for: by options of `oncelog serve`, or by a test."""

    data_dir: Path | None = None
    listen: str | None = None
    advertised_listener: str | None = None
    config_file: Path | None = None
    assignments: Sequence[str] = ()
    metrics_port: int | None = None
    failpoints: Sequence[str] = ()
    throws_away: bool = False
    """The folder goes with the process."""

    def prepare(self) -> tuple[Path, Settings]:
        """The data folder and the settings. Raises ConfigError or OSError."""
        if self.throws_away:
            fsyncs.do_without()
        arm_failpoints(self.failpoints)
        given = {
            "log.dirs": self.data_dir,
            "listeners": self.listen,
            "advertised.listeners": self.advertised_listener,
            "oncelog.metrics.port": self.metrics_port,
        }
        overrides = {name: str(value) for name, value in given.items() if value is not None}
        settings = load_settings(self.config_file, self.assignments, overrides)
        for warning in warnings_of(settings):
            log.warning(warning)
        folders = settings.optional_text("log.dirs") or ""
        if "," in folders:
            raise ConfigError("log.dirs: one folder is supported; several disks are better joined below it")
        folder = Path(folders or DEFAULT_DATA_DIR)
        log.info("oncelog %s, data in %s", __version__, folder.absolute())
        return folder, settings

    def sentence(self, error: Exception) -> str:
        """What one of `FAILURES` means."""
        if not isinstance(error, OSError):
            return str(error)
        return f"{error.filename or self.data_dir or DEFAULT_DATA_DIR}: {error.strerror or error}"


def load_settings(config_file: Path | None, assignments: Sequence[str], overrides: Mapping[str, str]) -> Settings:
    """Settings from a properties file, then `--set key=value`, then the command line's own options.

    What the command line sets is pinned: nothing that clients have changed goes before it.
    """
    filed = BROKER_CONFIG.defaults if config_file is None else _read_settings(config_file)
    entries: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {assignment!r}: expected KEY=VALUE")
        entries[name.strip()] = value
    entries.update(overrides)
    given = BROKER_CONFIG.parse(entries)
    return Settings(
        BROKER_CONFIG, {**filed.values, **given.values}, [*filed.warnings, *given.warnings], pinned=given.values
    )


def _read_settings(path: Path) -> Settings:
    """Raises ConfigError with file and line of what is wrong."""
    properties = parse_properties(decode_properties(path.read_bytes()), str(path))
    try:
        return BROKER_CONFIG.parse(properties)
    except ConfigError as error:
        raise ConfigError(f"{properties.place_of(error.key)}{error}", error.key) from error


def arm_failpoints(specifications: Sequence[str]) -> None:
    """`name`, or `name@3`: at the third hit the process kills itself with -9. For crash tests."""
    for specification in specifications:
        name, _, count = specification.partition("@")
        if count and not (count.isascii() and count.isdecimal() and int(count)):
            raise ConfigError(f"--failpoint {specification!r}: expected NAME or NAME@HIT, as append.before_write@3")
        failpoints.arm(name, failpoints.on_nth_hit(int(count or "1"), _kill_self))


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(
    data_dir: Path,
    settings: Settings,
    on_ready: Callable[[Address], None],
    first_users: FirstUsers = NO_USERS,
    *,
    takes_orders: bool = False,
) -> None:
    """Serves until a signal asks to stop. Whoever holds its standard input may give it orders, see `orders`."""
    os.umask(int(settings.text("oncelog.umask"), 8))
    keep_freed_memory()
    collect_garbage_hardly()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(data_dir, settings, on_ready, first_users, takes_orders))


def serve_for_test(
    *,
    data_dir: str,
    listen: str,
    config_file: str | None,
    assignments: Sequence[str],
    log_level: str,
    throws_away: bool,
) -> int:
    """`oncelog serve --take-orders` without the command line, which takes its time to import. Returns the exit code."""
    set_up_logging(log_level)
    file = None if config_file is None else Path(config_file)
    start = Start(Path(data_dir), listen, config_file=file, assignments=assignments, throws_away=throws_away)
    try:
        folder, settings = start.prepare()
        run(folder, settings, _tell_ready, takes_orders=True)
    except FAILURES as error:
        sys.stderr.write(f"Error: {start.sentence(error)}\n")
        return 1
    return 0


def _tell_ready(address: Address) -> None:
    sys.stdout.write(f"{READY} {address}\n")
    sys.stdout.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _server(data_dir: Path, settings: Settings, first_users: FirstUsers) -> Server | ControllerServer:
    check_roles(settings)
    if not is_controller(settings):
        return Server(data_dir, settings, first_users)
    from oncelog.server.controller_server import ControllerServer

    return ControllerServer(data_dir, settings)


async def _serve(
    data_dir: Path,
    settings: Settings,
    on_ready: Callable[[Address], None],
    first_users: FirstUsers,
    takes_orders: bool,
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A hang-up that is ignored stays so, as `nohup` wants it.
        if signal_number != signal.SIGHUP or signal.getsignal(signal_number) is not signal.SIG_IGN:
            loop.add_signal_handler(signal_number, stopping.set)
    server = _server(data_dir, settings, first_users)
    try:
        start, stop = loop.create_task(server.start()), loop.create_task(stopping.wait())
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait([start])
            return
        address = await start
        collect_garbage_rarely()
        on_ready(address)
        if isinstance(server, Server):
            server.load_handlers()
            if takes_orders:
                from oncelog.server.orders import Orders

                Orders(server).listen(loop)
        ended = loop.create_task(server.until_ended())
        await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await ended
        ended.cancel()
        log.info("stopping")
    finally:
        await server.stop()
