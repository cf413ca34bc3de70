"""The API page of the documentation, made from docstrings: `python -m oncelog.client.reference docs/client-api.md`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import oncelog.client
from oncelog.client import admin

_QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
_HEAD = """# The client's API

Made from docstrings by `python -m oncelog.client.reference docs/client-api.md`; a test compares it. How the parts are
used together is on the page [client](client.md). Names are imported from `oncelog.client`, those of the
[second part](#oncelogclientadmin) from `oncelog.client.admin`.
"""
_OF_ADMINS = """## oncelog.client.admin

What the calls of `Admin` take and return besides is imported from there.
"""


def page() -> str:
    names = set(oncelog.client.__all__)
    of_admins = set(admin.__all__) - names
    lines = [_HEAD, *_entries(oncelog.client, names), _OF_ADMINS, *_entries(admin, of_admins)]
    return "\n".join(lines) + "\n"


def _entries(module: ModuleType, names: set[str]) -> Iterator[str]:
    for name in sorted(names, key=str.lower):
        yield from _entry(name, getattr(module, name))


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if inspect.isclass(thing):
        yield from _class(thing)
    elif callable(thing):
        yield f"`{name}{_signature(thing)}`\n"
        yield f"{inspect.getdoc(thing) or ''}\n"
    else:
        yield f"`{thing!r}`\n" if not inspect.ismodule(thing) else f"{inspect.getdoc(thing) or ''}\n"


def _class(cls: type) -> Iterator[str]:
    constructor = vars(cls).get("__init__")
    if constructor is not None and "config" in inspect.signature(constructor).parameters:
        yield f"**`{cls.__name__}{_signature(cls).removesuffix(' -> None')}`**\n"
    if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("):
        yield f"{inspect.getdoc(cls)}\n"
    yield from _parts(cls)
    for member, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if member.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        kind = member if isinstance(value, property) else f"{member}{_signature(function)}"
        yield f"**`{kind}`** {inspect.getdoc(function)}\n"


def _parts(cls: Any) -> Iterator[str]:
    """What a value is made of."""
    if issubclass(cls, Enum):
        yield "Members: " + ", ".join(f"`{member.name}`" for member in cls) + "\n"
    elif dataclasses.is_dataclass(cls):
        yield _fields({field.name: (field.type, field.default) for field in dataclasses.fields(cls)})
    elif hasattr(cls, "_field_defaults"):
        kinds = inspect.get_annotations(cls)
        yield _fields({name: (kinds[name], cls._field_defaults.get(name, dataclasses.MISSING)) for name in cls._fields})


def _fields(fields: dict[str, tuple[Any, Any]]) -> str:
    texts = []
    for name, (kind, default) in fields.items():
        type_name = kind if isinstance(kind, str) else kind.__forward_arg__
        texts.append(f"`{name}: {type_name}" + ("`" if default is dataclasses.MISSING else f" = {default!r}`"))
    return "Fields: " + ", ".join(texts) + "\n"


def _signature(function: object) -> str:
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]  # whatever it is, it was callable
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r"^\((self|cls)(, )?", "(", _QUOTED_TYPE.sub(r"\1\2", text))


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
