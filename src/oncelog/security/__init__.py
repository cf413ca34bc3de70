"""Who somebody is and what they may do, as pure logic: SASL mechanisms as state machines, and ACLs.

No clock, no randomness, no I/O: nonces and keys come in as arguments.
"""
