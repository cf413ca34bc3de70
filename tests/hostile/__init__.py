"""Well-formed requests that would cost a broker far more than they cost whoever sends them.

`amplification` is the table: requests, and bounds on what they may cost. `measured_broker` tells what the process of a
broker has spent. `test_amplification` plays the table.
"""
