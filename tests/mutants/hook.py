"""Puts the mutant that ONCELOG_MUTANT names into this process. A pytest plugin as well: `-p tests.mutants.hook`."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Final

from tests.mutants.mutant import Mutant

VARIABLE: Final = "ONCELOG_MUTANT"


class MutatedLoader(importlib.machinery.SourceFileLoader):
    """Without bytecode: what is compiled here must not be found by others."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class MutantFinder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        sys.meta_path.remove(self)
        source = self._mutant.source()
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutatedLoader(name, spec.origin, source)
        return spec


def install() -> Mutant | None:
    name = os.environ.get(VARIABLE)
    if name is None:
        return None
    from tests.mutants.catalogue import MUTANTS

    mutant = MUTANTS[name]
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} was imported before {mutant.name} could be put in")
    sys.meta_path.insert(0, MutantFinder(mutant))
    return mutant


install()
