"""Requests that would cost a broker far more than they cost whoever sends them, and frames that make no sense.

`amplification` is the table: requests, and bounds on what they may cost; the rows about what is in batches are in
`batch_rows`. `play` sends them and measures, with `measured_broker` for the process of the broker, `loop_watch` for its
event loop and `bystander` for a client that has nothing to do with it. `fuzzer` makes frames of every API and version
and changes bytes of them.
"""
