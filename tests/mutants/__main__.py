"""`python -m tests.mutants`: which mutants are found, and which have survived."""

from __future__ import annotations

import argparse
import sys

from tests.mutants.catalogue import MUTANTS
from tests.mutants.runner import Verdict, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="only these, with what their searches said")
    parser.add_argument("--list", action="store_true", help="names, modules and searches; nothing is run")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MUTANTS]
    if unknown:
        parser.error(f"there is no mutant named {', '.join(unknown)}: see --list")
    if options.list:
        for mutant in MUTANTS.values():
            print(f"{mutant.name}  {mutant.module}  {'; '.join(map(str, mutant.found_by))}")  # noqa: T201
        return 0
    return _run_all(options.names)


def _run_all(names: list[str]) -> int:
    verdicts: list[Verdict] = []
    for mutant in [MUTANTS[name] for name in names] or MUTANTS.values():
        for search in mutant.found_by:
            verdict = run(mutant, search)
            verdicts.append(verdict)
            print(verdict, flush=True)  # noqa: T201
            if names or not verdict.is_found:
                print("\n".join(verdict.text.splitlines()[-25:]))  # noqa: T201
    survived = [verdict for verdict in verdicts if not verdict.is_found]
    print(f"{len(verdicts) - len(survived)} of {len(verdicts)} searches found their mutant")  # noqa: T201
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
