"""The broker's own log, on the standard error: whatever clients send, it stays readable and small, and holds up nobody.

* Control characters are escaped, and long values and lines are cut: a client id cannot forge a line, or fill a disk.
* Of one kind, which is a place in the source that logs or what the record names, `KIND_LINES_MAX` lines are written in
  `WINDOW_S` seconds. The others are counted, and their number is a line of its own. Debugging has no such limit.
* A line is written at once if that does not block. If nobody reads the pipe, lines wait in a queue of bounded size, for
  a thread that may block; what does not fit is counted, and told when there is room again.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

VALUE_CHARS_MAX: Final = 500
LINE_CHARS_MAX: Final = 2_000
TRACE_CHARS_MAX: Final = 16_000
KIND_LINES_MAX: Final = 100
WINDOW_S: Final = 10.0
QUEUE_BYTES_MAX: Final = 1 << 20
LAST_LINES_S: Final = 2.0
"""How long the process waits at its end for the last lines to be read."""
_TRACE_INDENT: Final = "    "


def set_up_logging(level: str, style: str = "text") -> None:
    handler = OperatorLog(2)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def printable(text: str) -> str:
    """The text with characters escaped that would move the cursor, begin a line or cannot be encoded."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}... ({len(text) - chars_max:,} more characters)"


def message_of(record: logging.LogRecord) -> str:
    args = record.args
    if hasattr(record, "audit"):
        return str(record.msg)
    if isinstance(args, tuple):
        args = tuple(shortened(arg, VALUE_CHARS_MAX) if isinstance(arg, str) else arg for arg in args)
    text = str(record.msg) % args if args else str(record.msg)
    return printable(shortened(text, LINE_CHARS_MAX))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: {message_of(record)}"
        if not record.exc_info:
            return line
        # Indented, so that no line of it looks like another message.
        trace = [_TRACE_INDENT + printable(part) for part in self.formatException(record.exc_info).split("\n")]
        return shortened("\n".join([line, *trace]), TRACE_CHARS_MAX)


class JsonFormatter(logging.Formatter):
    """One object per line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **(getattr(record, "audit", None) or {"message": message_of(record)}),
        }
        if record.exc_info:
            entry["exception"] = shortened(self.formatException(record.exc_info), TRACE_CHARS_MAX)
        return json.dumps(entry)


class _Window:
    """Lines of one kind since some time."""

    __slots__ = ("begin_s", "count", "example")

    def __init__(self, begin_s: float, example: logging.LogRecord) -> None:
        self.begin_s = begin_s
        self.count = 0
        self.example = example

    def left_out(self, now_s: float) -> logging.LogRecord | None:
        """A line about those that were not written."""
        if self.count <= KIND_LINES_MAX:
            return None
        text = "and %s more like this within %.0f s: %s"
        args = (f"{self.count - KIND_LINES_MAX:,}", now_s - self.begin_s, message_of(self.example))
        of = self.example
        return logging.LogRecord(of.name, of.levelno, of.pathname, of.lineno, text, args, None)


class OperatorLog(logging.Handler):
    """`emit` is called with the handler's lock. The queue has its own, which is never held while writing blocks."""

    def __init__(self, descriptor: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._clock_s = clock_s
        self._windows: dict[tuple[object, ...], _Window] = {}
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None
        self._is_closed = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.DEBUG or self._is_within_limit(record):
            self._put(record)

    def _is_within_limit(self, record: logging.LogRecord) -> bool:
        now_s = self._clock_s()
        kind = getattr(record, "kind", (record.pathname, record.lineno))
        window = self._windows.get(kind)
        if window is None or now_s - window.begin_s >= WINDOW_S:
            self.tell_of_left_out()
            window = self._windows[kind] = _Window(now_s, record)
        window.count += 1
        if window.count == KIND_LINES_MAX + 1:
            self._start_writer()  # it tells of those that are left out, should no other line do so
        return window.count <= KIND_LINES_MAX

    def tell_of_left_out(self) -> None:
        """About kinds whose time is over."""
        now_s = self._clock_s()
        for kind, window in list(self._windows.items()):
            if now_s - window.begin_s >= WINDOW_S:
                del self._windows[kind]
                summary = window.left_out(now_s)
                if summary is not None:
                    self._put(summary)

    def _put(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
        except Exception:  # noqa: BLE001  a message that cannot be formatted must not end what logged it
            line = f"a message of {record.pathname}:{record.lineno} could not be formatted\n".encode()
        with self._changed:
            if not self._queue and self._is_writable(line):
                self._write(line)
            elif self._queued_bytes + len(line) > QUEUE_BYTES_MAX:
                self._dropped += 1
            else:
                self._queue.append(line)
                self._queued_bytes += len(line)
                self._start_writer()
                self._changed.notify_all()

    def _is_writable(self, line: bytes) -> bool:
        """A pipe that has any room takes as much as PIPE_BUF at once."""
        if len(line) > select.PIPE_BUF:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0))

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._dropped += 1  # nobody will ever read it, and there is nowhere else to say so

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_queued, name="oncelog-log", daemon=True)
            self._writer.start()

    def _write_queued(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._is_closed, timeout=1.0)
                line = self._queue[0] if self._queue else None
            if line is None:
                with self.lock or threading.RLock():
                    self.tell_of_left_out()
                continue
            self._write(line)
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= len(line)
                dropped = self._dropped if not self._queue else 0
                self._dropped -= dropped
                self._changed.notify_all()
            if dropped:
                self._tell_of_dropped(dropped)

    def _tell_of_dropped(self, count: int) -> None:
        text = "%s lines of this log were dropped, because nobody read them"
        self.handle(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (f"{count:,}",), None))

    def flush(self) -> None:
        """Waits until the lines are read, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue, timeout=LAST_LINES_S)

    def close(self) -> None:
        with self.lock or threading.RLock():
            for window in self._windows.values():
                window.begin_s = min(window.begin_s, self._clock_s() - WINDOW_S)
            self.tell_of_left_out()
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().close()
