"""Histories of controllers that decide for brokers, from a seed, with a fake ZooKeeper and a virtual clock.

The controllers are whole ones: `ControllerFront`, `ControllerNode`, `Machine` and `ZooKeeperMetadataLog`. Brokers have
their own `QuorumLog` and `Lifecycle`; what they lead is a script. The promises are named in `judge`.
"""
