"""Whole histories of a broker and its clients on a virtual clock, drawn from a seed.

Theory of operation
-------------------
One real `Broker` lives in a folder of a memory file system, without sockets: requests reach it as bytes through the
real `Connection` and `Dispatcher`, over a network (`network`) that delays, breaks and repeats. Clients (`producers`,
`workers`, `readers`, `operators`) are small scripts that speak the versions which real clients speak. The broker dies
at any moment, also in the middle of an operation at a failpoint, and is started again on what it left (`station`).
Time is a number.

`plan` draws from the seed what a history is made of: each has some of the troubles only, because a history with all of
them hardly gets anywhere. `history` plays it: trouble, then peace, then a look at everything.

`model` keeps what clients asked for and what the broker has answered, nothing else. `invariants` compares it with what
readers see and with what `log_audit` finds in the files. A violation has a name, and the seed brings it back:

    python -m tests.simulation --seconds 600            # random seeds
    python -m tests.simulation --seed 4711              # one history again, with its trace
"""
