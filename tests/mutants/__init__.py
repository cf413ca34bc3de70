"""Faults put into the broker on purpose: tests that do not find them are worth less than they look.

Theory of operation
-------------------
A mutant (`catalogue`) is a small change of the source text, named by what it breaks, with the searches that must find
it: histories of the simulation, or tests. The files are not touched: a mutant is put into a process of its own when its
module is imported (`hook`), by the environment variable ONCELOG_MUTANT. `runner` starts such a process for every
search and reports whether the mutant was found. One that only makes tests hang counts as survived: somebody would have
to guess what is wrong.

    make test-mutants                                 # all of them, some minutes
    python -m tests.mutants "the name of one"         # one, with what its searches said
    python -m tests.mutants --list

To add one, append it to the catalogue of its layer. `make test` checks that every mutant can still be applied and runs
the few that are marked as quick.
"""
