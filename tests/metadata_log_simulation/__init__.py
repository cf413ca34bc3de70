"""Histories of controllers that share a log in ZooKeeper, on a virtual clock and from a seed."""
