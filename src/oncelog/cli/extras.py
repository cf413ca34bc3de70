"""Optional dependencies: commands that need an extra say which one."""

from __future__ import annotations

import importlib.util

import click


def require_extra(extra: str, what: str, *modules: str) -> None:
    if any(importlib.util.find_spec(module) is None for module in modules):
        raise click.ClickException(f"{what} is missing: pip install 'oncelog[{extra}]'")
