from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

from oncelog.protocol.api_keys import ApiKey
from oncelog.server import handlers

MODULES = [module.name for module in pkgutil.iter_modules(handlers.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_a_handler_is_named_after_its_key_and_opens_with_the_versions_that_it_serves(name: str) -> None:
    key = ApiKey(int(name[1:3]))
    assert name == f"h{key:02}_{key.name.lower()}"
    docstring = importlib.import_module(f"{handlers.__name__}.{name}").__doc__ or ""
    opening = re.match(r"(\w+) \((\d+)\), v(\d+)(?:-(\d+))?\b", docstring)
    assert opening is not None, docstring
    stem, number, first, last = opening.groups()
    stable_last = key.advertised[1]
    assert (stem, int(number), int(first), int(last or first)) == (key.stem, key, key.first, stable_last)
