"""The API page of the documentation, made from docstrings: `python -m oncelog.client.reference docs/client-api.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import oncelog.client

_QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
_HEAD = """# The client's API

Made from docstrings by `python -m oncelog.client.reference docs/client-api.md`; a test compares it. How the parts are
used together is on the page [client](client.md).
"""


def page() -> str:
    names = sorted(oncelog.client.__all__, key=str.lower)
    return "\n".join([_HEAD, *(line for name in names for line in _entry(name))]) + "\n"


def _entry(name: str) -> Iterator[str]:
    thing = getattr(oncelog.client, name)
    yield f"## {name}\n"
    if inspect.isclass(thing):
        yield from _class(thing)
    elif callable(thing):
        yield f"`{name}{_signature(thing)}`\n"
        yield f"{inspect.getdoc(thing) or ''}\n"
    else:
        yield f"`{thing!r}`\n" if not inspect.ismodule(thing) else f"{inspect.getdoc(thing) or ''}\n"


def _class(cls: type) -> Iterator[str]:
    if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("):
        yield f"{inspect.getdoc(cls)}\n"
    for member, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if member.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        kind = member if isinstance(value, property) else f"{member}{_signature(function)}"
        yield f"**`{kind}`** {inspect.getdoc(function)}\n"


def _signature(function: object) -> str:
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]  # whatever it is, it was callable
    except (TypeError, ValueError):
        return "(...)"
    return _QUOTED_TYPE.sub(r"\1\2", text).replace("(self, ", "(").replace("(self)", "()")


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
