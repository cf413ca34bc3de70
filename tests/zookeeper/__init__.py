"""The controllers' log in a real ZooKeeper."""
